"""A real Celery worker of the app server in the simulation, by the pool `solo`.

Messages are put into its queue; faults are those of the broker, Redis, its links and the worker
itself. What it sends and what Redis stores is noted, and judged by `RULES`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random
from struct import Struct
from typing import Any
from uuid import UUID

import pika
from pika import spec

from gateway.celery_message import Message, MessageOptions
from tests.simulation import faults, greenlets, redis_model, seams

greenlets.install()

from celery import Celery, signals  # noqa: E402
from celery.app.trace import setup_worker_optimizations  # noqa: E402
from celery.worker import WorkController, state  # noqa: E402
from kombu.asynchronous import set_event_loop  # noqa: E402

from appserver.bootsteps import QuietTasks  # noqa: E402
from appserver.celery_setup import setup  # noqa: E402
from appserver.held_results import LONG  # noqa: E402
from appserver.poison import BEGUN_AGAIN  # noqa: E402
from appserver.queues import DEAD_LETTER_EXCHANGE  # noqa: E402
from appserver.reply_connection import reply_connection  # noqa: E402
from appserver.settings import settings  # noqa: E402
from appserver.task_stream import READ  # noqa: E402
from tests.simulation.faults import Fault  # noqa: E402
from tests.simulation.loop import DEAD, Party  # noqa: E402
from tests.simulation.rabbitmq_model import Channel, Queue, _encoded  # noqa: E402
from tests.simulation.rabbitmq_model import Message as Published  # noqa: E402
from tests.simulation.world import Plan, World  # noqa: E402

# Celery warns, with a traceback, of each result that a faulty Redis has refused.
warnings.filterwarnings("ignore", "Exception raised outside body")

NAME, QUEUE, REPLIES, KEY = "worker1", "celery", "gateway.reply.1", "celery-task-meta-"
WARM, SECONDS, CALM, SETTLE = 3.0, 16.0, 15.0, 90.0
MESSAGES = 40
PROMPT = 0.05  # seconds until a result is written without faults, and the time of ten packets
RETRIES = 12.0  # seconds for which the worker notices that Redis was away
ENVIRONMENT = {
    "GATEWAY_BROKER_URL": "amqp://guest:guest@broker:5672//",
    "GATEWAY_RESULT_BACKEND": "redis://redis:6379/0?protocol=2",
}
#: What may happen: the target, the fault, and for how many seconds.
KINDS = [
    *(("broker", "killed", 0.0, 4.0), ("broker", "frozen", 1.0, 9.0)),
    *(("broker", "connections closed", 0.0, 0.0), ("broker", "alarm", 1.0, 8.0)),
    *(("broker", "consumer timeout", 0.0, 0.0), ("redis", "killed", 0.0, 4.0)),
    *(("redis", "frozen", 1.0, 9.0), ("redis", "clients cut", 0.0, 0.0)),
    *(("redis", "read-only", 1.0, 6.0), ("redis", "failed over", 0.0, 0.0)),
    *(("redis", "out of memory", 1.0, 6.0), ("redis", "scripts flushed", 0.0, 0.0)),
    *((f"{NAME}>broker", "reset", 0.0, 0.0), (f"{NAME}>broker", "forgotten", 0.0, 0.0)),
    *((f"{NAME}>broker", "stalled", 0.5, 6.0), (f"{NAME}>broker", "black hole", 2.0, 25.0)),
    *((f"{NAME}>broker", "slow", 2.0, 10.0), (f"{NAME}>redis", "reset", 0.0, 0.0)),
    *((f"{NAME}>redis", "stalled", 0.5, 6.0), (f"{NAME}>redis", "slow", 2.0, 10.0)),
    *((NAME, "killed", 0.0, 4.0), (NAME, "frozen", 1.0, 9.0), (NAME, "told to end", 0.0, 2.0)),
    (NAME, "dies", 0.5, 12.0),
]
UNUSABLE = b"[1]"  # the body of a message that cannot be begun
UNKNOWN = "unknown"  # a task that the worker does not know
_frame = Struct(">BHI")


class WorkerPlan(Plan):
    """What a seed does with a worker."""

    def __init__(self, seed: int):
        rng = Random(f"plan worker {seed}")
        self.calm = seed % 5 == 0
        self.gateways, self.queue, self.senders, self.wires = 0, {}, None, False
        self.seconds = SECONDS
        self.faults = []
        for _ in range(0 if self.calm else rng.randint(1, 5)):
            target, kind, least, most = rng.choice(KINDS)
            at, length = rng.uniform(0, SECONDS), rng.uniform(least, most)
            self.faults.append(Fault(round(at, 2), target, kind, round(length, 2), kind))


@dataclass(eq=False)
class Job:
    """A message and what has become of it; times are the loop's seconds."""

    message: Message
    reply: bool
    nonces: list[str] = field(default_factory=list)  # of the executions that have succeeded
    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)  # replies
    arrived: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # replies
    stored: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)  # acknowledged, as the worker sent it
    process: greenlets.Process | None = None  # which ran it last
    deaths: int = 0  # of the worker, with its task
    lost: bool = False  # the worker has said so

    @property
    def must_store(self) -> bool:
        if self.message.options.ignore_result:
            return False
        return not self.reply or bool(self.message.delivery["store"])


class CeleryWorker:
    """The worker; started again after its death or its end."""

    def __init__(self, world: CeleryWorld):
        self.world = world
        self.starts = 0
        self.ended = True
        self.party = Party(NAME)
        #: Each task that begins ends its process, if it is not empty.
        self.dies_at = ""

    def start(self) -> None:
        if not self.ended and self.party.state != DEAD:
            return
        # What Celery's modules have of the process before.
        for requests in (state.reserved_requests, state.active_requests, state.requests):
            requests.clear()
        state.should_stop = None
        set_event_loop(None)
        for signal in (signals.worker_shutdown, signals.worker_process_shutdown):
            signal.receivers = []
        self.starts += 1
        self.ended, self.party = False, Party(NAME)
        random = Random(f"{self.world.seed} process {self.starts}")
        process = greenlets.Process(self.party, self.world.network, random)
        process.on_send = self.world.sent
        greenlets.enter(process)
        self.app = _app(self.world)
        process.start(self._run)

    def _run(self) -> None:
        setup_worker_optimizations(self.app, "worker@simulation")  # as the command does
        controller = WorkController(app=self.app, pool="solo", hostname="worker@simulation")
        try:
            controller.start()
        except BaseException as exc:  # noqa: BLE001 - it is a violation
            self.world.evidence.logged.append(f"the worker ends: {exc!r}")
        if controller.exitcode:
            self.world.evidence.logged.append(f"the worker ends with {controller.exitcode}")
        held = reply_connection(self.app).held
        kept = [*(held._held if held else ()), *state.reserved_requests, *state.active_requests]
        self.world.evidence.left += [f"the worker's end keeps {one}" for one in kept]
        self.ended = True

    def kill(self) -> None:
        self.world.loop.kill(self.party)

    def die(self) -> None:
        self.kill()
        self.world.later(self.world.random.uniform(0.1, 1.0), self.start)
        greenlets.running().hub.switch()  # this greenlet does not run any more

    def tell_to_end(self) -> None:
        state.should_stop = 0


def _app(world: CeleryWorld) -> Celery:
    app = Celery("simulated", set_as_current=False)
    setup(app)
    app.add_defaults(lambda: settings(ENVIRONMENT) | {"worker_enable_remote_control": False})
    app.steps["worker"].add(QuietTasks)
    for name in ("quick", "mixed", "slow"):
        app.task(name=name, bind=True, shared=False)(_task_of(world))
    return app


def _task_of(world: CeleryWorld) -> Any:
    def task(self: Any, seconds: float, fails: float, size: int, looks: bool) -> str:
        job, task_id = world.jobs[self.request.id], self.request.id
        job.begun.append(world.loop.time())
        world.trace(NAME, f"begins {self.name} {task_id}")
        if world.worker.dies_at:
            job.deaths += 1
            world.worker.die()
        if seconds:
            time.sleep(seconds)
        if looks:
            world.look(self.app)
        job.ended.append(world.loop.time())
        job.process = greenlets.process
        if world.random.random() < fails:
            world.trace(NAME, f"fails {task_id}")
            raise ValueError("as asked")
        job.nonces.append(nonce := f"{world.random.getrandbits(64):016x}")
        world.trace(NAME, f"ran {task_id}: {nonce}")
        return f"{task_id} {nonce}" + "x" * size

    return task


class CeleryWorld(World):
    """The servers, the worker, its messages, and what was seen of them."""

    def _begin(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.refused: list[str] = []
        self._servers()
        self.broker.queues[REPLIES] = Queue(REPLIES, True, None, False, {})
        self.broker.queues[QUEUE] = Queue(QUEUE, True, None, False, {})
        self._enqueue = self.broker.enqueue
        self.broker.enqueue = self._enqueued  # type: ignore[method-assign]
        self.worker = CeleryWorker(self)
        self.workers = {NAME: self.worker}
        self.ids = Random(f"ids {self.seed}")

    async def _main(self) -> None:
        self.listen_broker()
        self.listen_redis()
        self.worker.start()
        await asyncio.sleep(WARM)
        self.evidence.ready = self.loop.time()
        publishing = self.loop.start(self.party, self._publish())
        await faults.inject(self, self.plan.faults)
        await publishing
        await asyncio.sleep(CALM)
        end = self.loop.time() + SETTLE
        while self.broker.messages(QUEUE) and self.loop.time() < end:
            await asyncio.sleep(0.5)
        await asyncio.sleep(1)
        self.worker.tell_to_end()
        await asyncio.sleep(12)  # its loop wakes up for its next timer
        if not self.worker.ended:
            self.evidence.left.append("the worker does not end")

    async def _publish(self) -> None:
        while len(self.jobs) < MESSAGES:
            for _ in range(self.random.randint(1, 8)):
                self._publish_one()
            queue = self.broker.queues[QUEUE]
            self.broker.deliver(queue)
            await asyncio.sleep(self.random.expovariate(MESSAGES / 4 / SECONDS))

    def _publish_one(self) -> None:
        rng = self.random
        name = rng.choice(["quick", "quick", "quick", "mixed", "slow"])
        slow = name == "slow" or (name == "mixed" and rng.random() < 0.5)
        seconds = rng.uniform(0.02, 0.4) if slow else rng.choice([0, 0, 0.0002])
        size = rng.choice([0, 0, 0, 0, 0, 0, 0, 0, LONG, 200_000])
        call = [[seconds, rng.choice([0, 0, 0.5]), size, rng.random() < 0.1], {}, {}]
        padding = " " * rng.choice([0, 0, 0, 0, 0, 0, 0, 0, READ - 400, 200_000])
        body = (json.dumps(call) + padding).encode()
        strange = rng.random()
        if strange < 0.03:
            name = UNKNOWN
        elif strange < 0.06:
            name, body = "quick", b"{no json"
        elif strange < 0.09:
            name, body = "quick", UNUSABLE
        reply = rng.random() < 0.6
        expired = name == "quick" and rng.random() < 0.06
        task_id = str(UUID(int=self.ids.getrandbits(128)))
        message = Message(
            task_id, name, QUEUE, body, {"id": "d", "store": rng.random() < 0.3},
            expires=seams.EPOCH - 9 if expired else None,
            options=MessageOptions(
                ignore_result=not reply and rng.random() < 0.1, track_started=rng.random() < 0.1
            ),
        )  # fmt: skip
        self.jobs[task_id] = Job(message, reply)
        properties = pika.BasicProperties(
            content_type="application/json", content_encoding="utf-8", headers=message.headers(),
            delivery_mode=2, correlation_id=task_id, reply_to=REPLIES if reply else None,
        )  # fmt: skip
        header = _encoded(properties, len(body))
        self.broker.enqueue(self.broker.queues[QUEUE], Published("", QUEUE, header, body))
        self.trace("publish", f"{name} {task_id} {seconds:.4f} s, reply {reply}, {len(body)} bytes")

    # What is seen -----------------------------------------------------------------------------

    def _enqueued(self, queue: Queue, message: Published) -> bool:
        taken = self._enqueue(queue, message)
        if queue.name == REPLIES:
            properties = message.properties
            found = json.loads(message.body)
            self.trace("reply", f"{properties.correlation_id}: {found['status']}")
            self.jobs[properties.correlation_id].arrived.append((self.loop.time(), found))
        return taken

    def stored(self, key: bytes, value: bytes) -> None:
        if b"." not in key:
            meta = json.loads(value)
            self.trace("redis", f"{key.decode()}: {meta['status']}")
            self.jobs[key.decode().removeprefix(KEY)].stored.append((self.loop.time(), meta))

    def sent(self, sock: greenlets.Socket, data: bytes) -> None:
        """Note what the worker acknowledges and replies; judge what it acknowledges."""
        peer = sock.end.peer if sock.end else None
        if peer is None or peer.party.name != "broker" or data.startswith(b"AMQP"):
            return
        replies = False
        for kind, number, payload in _frames(data):
            if kind == 1 and payload.startswith(b"\0\x3c\0\x28"):
                replies = REPLIES.encode() in payload
            elif kind == 2 and replies:
                properties = spec.BasicProperties()
                properties.decode(payload[12:])
                self.jobs[properties.correlation_id].written.append(self.loop.time())
                if sock.ended:
                    text = f"{properties.correlation_id} is replied on a connection that has ended"
                    self.evidence.left.append(text)
            elif kind == 1 and payload.startswith(b"\0\x3c\0\x50"):
                channel = peer.protocol.peer.channels.get(number)
                if channel is not None and not channel.closing:
                    self._acknowledged(channel, int.from_bytes(payload[4:12]))

    def _acknowledged(self, channel: Channel, tag: int) -> None:
        if tag not in channel.unacked:
            # py-amqp opens a channel again that the broker has closed, and nothing is consumed on.
            if channel.consumers:
                self.refused.append(f"the tag {tag} is acknowledged, and was not delivered")
            return
        _, message, _ = channel.unacked[tag]
        job = self.jobs[message.properties.headers["id"]]
        job.settled.append(self.loop.time())
        self.trace(NAME, f"acknowledges {job.message.task_id}")
        if problem := _unrecorded(self, job, self.loop.time() - RETRIES):
            self.evidence.left.append(f"{job.message.task_id} is acknowledged {problem}")

    def look(self, app: Celery) -> None:
        """Let a task look for the result of the task before it that has one."""
        process = greenlets.process
        for task_id, job in reversed(self.jobs.items()):
            if job.ended and job.must_store and job.process is process:
                seen = app.backend.get_task_meta(task_id)["status"]
                if seen == "PENDING" and not job.lost and not self.broken("redis"):
                    self.evidence.left.append(
                        f"the next task does not find the result of {task_id}"
                    )
                return

    def broken(self, *targets: str, since: float = 0.0) -> bool:
        """Tell whether there was a fault of any of these, also in a link, since then."""
        return any(
            target in fault.target and fault.ended >= since
            for fault in self.evidence.injected
            for target in targets
        )

    def is_violation(self, record: logging.LogRecord) -> bool:
        if record.msg.startswith("The result of task %s is lost"):
            self.jobs[str(record.args[0]).removeprefix(KEY)].lost = True  # type: ignore[index]
            return not self.broken("redis", since=self.loop.time() - RETRIES)
        known = record.msg.startswith(
            ("Couldn't", "Can't decode", "The message of task")
        )  # of a lost connection, of ours
        strange = record.levelno >= logging.CRITICAL and not known
        ours = record.name.startswith("appserver") or "Connection to broker lost" in record.msg
        return strange or (
            self.plan.calm and ours and not known and record.levelno >= logging.WARNING
        )

    def _failed(self, party: Party, context: dict[str, Any]) -> None:
        super()._failed(party, context)
        if party.state != DEAD:
            self.evidence.logged.append(f"{party.name}: {context}")


def _frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        kind, channel, size = _frame.unpack_from(data, at)
        yield kind, channel, data[at + 7 : at + 7 + size]
        at += size + 8


# What is judged -----------------------------------------------------------------------------------

_FINAL = {"SUCCESS", "FAILURE", "REVOKED"}


def _unrecorded(world: CeleryWorld, job: Job, since: float = 0.0) -> str:
    """Say what is missing of the record of a job that has ended; empty: nothing."""
    if job.message.options.ignore_result or not job.message.body.startswith(b"["):
        return ""
    if job.lost:  # which is judged when the worker says so
        return ""
    stored = any(meta["status"] in _FINAL for _, meta in job.stored)
    if job.must_store and not stored:
        replied = job.reply and job.written and world.broken("redis", since=since)
        return "" if replied else "before its result is stored"
    return "" if stored or job.written else "before its result is written"


def _results(world: CeleryWorld) -> Iterator[str]:
    """Each has its result, and nobody gets another's."""
    for task_id, job in world.jobs.items():
        if text := _unrecorded(world, job):
            yield f"{task_id} has ended {text}"
        if job.written and not job.arrived and not world.broken("broker", NAME):
            yield f"{task_id}: its reply has not arrived"
        for _, meta in (*job.arrived, *job.stored):
            if meta["task_id"] != task_id:
                yield f"{task_id} has the result of {meta['task_id']}"
            if meta["status"] == "SUCCESS":
                name, _, nonce = meta["result"].rstrip("x").partition(" ")
                if name != task_id or nonce not in job.nonces:
                    yield f"{task_id} has the result {meta['result'][:60]}"
            elif meta["status"] == "FAILURE":
                fails = len(job.ended) > len(job.nonces) or job.message.task == UNKNOWN
                if not fails and job.message.body != UNUSABLE and not world.broken("redis", NAME):
                    yield f"{task_id} is a failure, and has not failed: {meta['result']}"
        states = [meta["status"] for _, meta in job.stored]
        if "SUCCESS" in states and states[-1] != "SUCCESS":
            yield f"{task_id}: its success is replaced by {states[-1]}"


def _executions(world: CeleryWorld) -> Iterator[str]:
    """Nothing is left in the queue; nothing runs again without a cause."""
    if left := world.broker.messages(QUEUE):
        yield f"{left} messages are left in the queue"
    for task_id, job in world.jobs.items():
        if job.deaths > BEGUN_AGAIN + 1 and not world.broken("redis"):
            yield f"the worker has died {job.deaths} times with {task_id}"
        if len(job.begun) > 1 and not world.broken("broker", NAME):
            yield f"{task_id} has run {len(job.begun)} times"
        if not job.begun and job.message.task != UNKNOWN and not _unusable(job):
            yield f"{task_id} has not run"
    timeouts = sum(fault.kind == "consumer timeout" for fault in world.evidence.injected)
    letters = set()
    for letter in world.broker.queues[DEAD_LETTER_EXCHANGE].ready:
        letters.add(task_id := letter.properties.headers["id"])
        job = world.jobs[task_id]
        unusable = job.message.body == UNUSABLE or job.message.task == UNKNOWN
        if job.deaths + timeouts < BEGUN_AGAIN and not unusable:
            yield f"{task_id} is a dead letter after {job.deaths} deaths"
    for task_id, job in world.jobs.items():
        if job.message.task == UNKNOWN and task_id not in letters:
            yield f"{task_id}, of a task that the worker does not know, is lost"
    yield from world.refused


def _unusable(job: Job) -> bool:
    return bool(job.message.expires) or not job.message.body.startswith(b"[[")


def _beginnings(world: CeleryWorld) -> Iterator[str]:
    """No beginning of what has ended is left."""
    if not world.broken("redis"):
        for key in world.redis.db:
            if key.endswith(b".begun"):
                yield f"{key.decode()} is left"


def _prompt(world: CeleryWorld) -> Iterator[str]:
    """Without faults each result is written at once, and nothing waits for a slow task."""
    if not world.plan.calm:
        return
    prompt = PROMPT + 10 * world.network.default.most
    slow = [t for job in world.jobs.values() if job.message.task == "slow" for t in job.begun]
    for task_id, job in world.jobs.items():
        if job.ended and not job.message.options.ignore_result:
            first = min([*job.written, *(at for at, _ in job.stored)], default=inf)
            if first > job.ended[0] + prompt:
                yield f"{task_id}: its result is written {first - job.ended[0]:.3f} s after its end"
        ours = len(job.message.body) < READ - 1000  # py-amqp reads what is longer
        if (
            ours
            and job.ended
            and any(job.ended[0] < at < min(job.settled, default=inf) for at in slow)
        ):
            yield f"{task_id}: its acknowledgement waits for a slow task"


RULES = (_results, _executions, _beginnings, _prompt)


def judge(world: CeleryWorld) -> list[str]:
    """Return a line for each promise that was broken."""
    seen = world.evidence
    problems = [f"{rule.__name__[1:]}: {text}" for rule in RULES for text in rule(world)]
    logged = [f"logged: {text}" for text in (*seen.logged, *world.redis.errors)]
    return [*problems, *seen.left, *logged]


def _noting(do_set: Any) -> Any:
    def noted(redis: Any, key: bytes, value: bytes, *options: bytes) -> Any:
        answer = do_set(redis, key, value, *options)
        if answer is not None and isinstance(seams.world, CeleryWorld):
            seams.world.stored(key, value)
        return answer

    return noted


redis_model._COMMANDS[b"SET"] = _noting(redis_model._COMMANDS[b"SET"])

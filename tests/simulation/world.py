"""A simulated world: servers, gateways, workers, senders, faults, and what is seen of them."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import signal
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Any

from appserver.queues import DEAD_LETTER_EXCHANGE
from tests.simulation import faults, holdings, late_answers, scenes, seams
from tests.simulation.gateways import GRACE, Child, Gateway, configuration
from tests.simulation.histories import Operation
from tests.simulation.late_answers import RECEIVER, Receiver
from tests.simulation.loop import DEAD, Killed, Livelock, Party
from tests.simulation.network import Conditions, Network, NetworkLoop
from tests.simulation.persons import Persons
from tests.simulation.rabbitmq_model import Broker
from tests.simulation.records import FORGETFUL, GONE, Evidence, Execution, Injected
from tests.simulation.redis_model import Redis
from tests.simulation.senders import IDENTIFIED, KEPT, Senders
from tests.simulation.workers import APP, STOCK, Worker

WARM = 4.0  # seconds until everything serves
SECONDS = 70.0  # of faults
CALM = 15.0  # seconds after the last fault until everything has to serve again
AFTER = 12.0  # seconds of requests after that
SETTLE = 60.0  # seconds until tasks and requests have to have ended
QUIET = 12.0  # seconds until nothing may be held any more
DELIVERIES = 170
SHORT = 1 / 8  # of the seeds that have faults keep results not much longer than tasks take
RELOADED = 1 / 4  # of these have no fault but that processes are told to end, often
LONGEST = 600.0  # seconds that a simulation may last
_moment = Struct("d").pack


class World:
    """Everything that a seed decides; ``plan`` is what `--shrink` takes parts away from."""

    def __init__(self, seed: int, strategy: str, plan: Plan, lines: list[str] | None = None):
        self.seed, self.strategy, self.plan, self.lines = seed, strategy, plan, lines
        self.random = Random(f"{strategy} {seed}")
        self.evidence = Evidence(strategy, seed, calm=plan.calm)
        self.digest = hashlib.blake2b(digest_size=16)
        self.loop = NetworkLoop(Random(f"network {strategy} {seed}"), self._failed)
        self.began = self.loop.time()
        self.network = Network(self.loop, self._observe)
        self.loop.network = self.network
        seams.enter(self, f"product {strategy} {seed}")
        self.workers: dict[str, Any] = {}
        self.gateways: dict[str, Gateway] = {}
        self.party = Party("world")
        self._begin()

    def _begin(self) -> None:
        plan, strategy = self.plan, self.strategy
        #: Seconds that results are kept; some senders try again when these are gone.
        self.expires = plan.expires
        late = late_answers.block(plan.replaces) if plan.late else None
        self.config = configuration(strategy, plan.queue, late, result_expires=self.expires)
        self._servers()
        self.gateways = {
            f"gateway{i + 1}": Gateway(self, f"gateway{i + 1}") for i in range(plan.gateways)
        }
        for i in range(2):
            order = STOCK if strategy == "redis" and self.random.random() < 0.5 else APP
            early = self.random.random() < 0.15
            name = f"worker{i + 1}"
            self.workers[name] = Worker(self, name, order, early)
        self.senders = Senders(self, DELIVERIES)
        self.persons = Persons(self, plan.persons, plan.seconds)
        self.failpoints: dict[str, str] = {}
        self.stage = scenes.Stage()
        self._struck = Random(f"struck {strategy} {self.seed}")
        self.inspected: dict[str, Any] = {}
        #: What was asked of each claim, by its key in Redis.
        self.histories: dict[bytes, list[Operation]] = {}

    def _servers(self) -> None:
        self.broker_party, self.redis_party = Party("broker"), Party("redis")
        self.broker = Broker(self.loop, Random(f"broker {self.seed}"))
        self.redis = Redis(self.loop, Random(f"redis {self.seed}"))
        self.receiver = Receiver(self.loop, Random(f"receiver {self.seed}"))
        self.redis.remember = any(fault.kind in FORGETFUL for fault in self.plan.faults)
        default = self.network.default
        most = self.random.choice([0.0005, 0.001, 0.003, 0.02])
        share = self.random.choice([0.0, 0.02, 0.3])
        self.network.default = Conditions(default.least, most, share, share)

    # What happens -----------------------------------------------------------------------------

    def run(self) -> Evidence:
        """Run it to its end, and return what was seen."""
        root = logging.getLogger()
        handler = _Logged(self)
        root.handlers, root.level = (
            [handler],
            logging.WARNING if self.lines is None else logging.INFO,
        )
        main = self.loop.start(self.party, self._main())
        main.add_done_callback(lambda _: self.loop.halt())
        self.later(LONGEST, self.loop.halt)
        try:
            self.loop.run()
        except Livelock as exc:
            self.evidence.logged.append(f"livelock: {exc}")
        else:
            if not main.done():
                self.evidence.logged.append("the simulation does not come to its end")
            else:
                main.result()
        root.handlers = []
        return self.evidence

    async def _main(self) -> None:
        loop = self.loop
        self.listen_broker()
        self.listen_redis()
        self.network.serve(Party(RECEIVER), (RECEIVER, 80), self.receiver)
        for worker in self.workers.values():
            worker.start()
        for gateway in self.gateways.values():
            gateway.start()
        await asyncio.sleep(WARM)
        self.evidence.ready = loop.time()
        sending = loop.start(self.senders.party, self.senders.run())
        replaying = loop.start(self.party, self.persons.run())
        for at in self.plan.flushes:
            self.later(at, self._forget_scripts)
        for at, steps in scenes.times(self.plan.scene):
            self.later(at, self.stage.begin, steps)
        if not self.plan.calm:
            await faults.inject(self, self.plan.faults)
        self.senders.until = loop.time() + self.plan.seconds + 30
        while not sending.done():  # a callback of it would be its party's
            await asyncio.sleep(0.1)
        sending.result()
        await replaying
        await self._settle()
        self.senders.close()
        await asyncio.sleep(QUIET)
        if self.plan.calm:
            self.evidence.left += holdings.uncollected()
        if holdings.held(self):
            gc.collect()  # as each process does from time to time
            left = holdings.held(self)
            for _ in range(4):  # perhaps it is one after the other of what is done periodically
                await asyncio.sleep(0.31)
                again = holdings.held(self)
                left = [line for line in left if line in again]
            self.evidence.left += left
        await self._stop()
        self.evidence.dead = holdings.dead_letters(self)
        self.inspected = await holdings.inspect(self)

    async def _settle(self) -> None:
        """Wait until no worker has a task, and nothing has to be sent late."""
        end = self.loop.time() + SETTLE
        quiet = 0
        while quiet < 4 and self.loop.time() < end:
            await asyncio.sleep(0.5)
            busy = any(worker.running for worker in self.workers.values()) or self.queued()
            busy = busy or self.redis_has("gateway:/::{late}:due")
            quiet = 0 if busy else quiet + 1
        if quiet < 4:
            running = [e.attempt for w in self.workers.values() for e in w.running.values()]
            self.evidence.left.append(f"tasks do not end: {running}, in queues {self.queued()}")

    async def _stop(self) -> None:
        """Stop all gateways, and see whether each ends with all that it has begun."""
        for gateway in self.gateways.values():
            gateway.stop()
        end = self.loop.time() + GRACE + 15
        children = [c for g in self.gateways.values() for c in g.children if c.party.state != DEAD]
        while any(not child.ended for child in children) and self.loop.time() < end:
            await asyncio.sleep(0.2)
        await asyncio.sleep(3)
        for child in children:
            self.evidence.left += holdings.stopped(child)

    def _forget_scripts(self) -> None:
        self.trace("redis", "forgets its scripts")
        self.redis.scripts.clear()

    def listen_broker(self) -> None:
        self._broker_listener = self.network.serve(self.broker_party, ("broker", 5672), self.broker)

    def redis_fails_over(self) -> None:
        """Let another server take Redis' place; the old one serves those that are connected."""
        self.redis_party = Party("redis")
        self.redis = self.redis.successor()
        self._redis_listener.close()
        self.listen_redis()

    def listen_redis(self) -> None:
        self._redis_listener = self.network.serve(self.redis_party, ("redis", 6379), self.redis)

    def queued(self) -> int:
        """Return how many messages wait or run."""
        return self.broker.messages("main") + self.broker.messages("further")

    def redis_has(self, key: str) -> bool:
        return self.redis.has(key)

    def stream_bytes(self, key: str) -> int:
        """Return the sum of the bytes that a stream's entries name."""
        stream = self.redis.get(key.encode()) or {}
        return sum(int(fields[3]) for fields in stream.values())

    def broker_down(self, lose_unsynced: bool) -> None:
        """Kill the broker."""
        self.broker.crash(lose_unsynced=lose_unsynced)
        self.loop.kill(self.broker_party)
        self._broker_listener.close()

    def broker_up(self) -> None:
        self.broker_party = Party("broker")
        self.broker.restart()
        self.listen_broker()

    def redis_down(self, lose: bool) -> None:
        """Kill Redis; `lose`: what it has not written in the last second."""
        self.redis.crash(lose_last_second=lose)
        self.loop.kill(self.redis_party)
        self._redis_listener.close()

    def redis_up(self) -> None:
        self.redis_party = Party("redis")
        self.redis.restart()
        self.listen_redis()

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something that belongs to the world itself, whoever is running now."""
        loop = self.loop
        loop.at_in(self.party, loop.time() + seconds, callback, *args)

    # What processes tell ----------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Take a signal that the running process sends itself."""
        party = self.loop.current
        for gateway in self.gateways.values():
            for child in gateway.children:
                if child.party is party:
                    if number == signal.SIGKILL:
                        child.kill()
                        raise Killed
                    child.terminate()

    def child_ended(self, child: Child) -> None:
        gateway = child.gateway
        self.evidence.ended.append((gateway.name, self.loop.time()))
        if gateway.running and child is gateway.child:
            self.evidence.logged.append(f"{gateway.name} has ended by itself")
            self.later(0.1, gateway.start_child)

    def reached(self, child: Child, step: str) -> None:
        """Kill a child at a step, where that is planned."""
        if self.failpoints.get(child.gateway.name) == step:
            del self.failpoints[child.gateway.name]
            self._kill_at(child, step)

    def _kill_at(self, child: Child, step: str) -> None:
        name, now = child.gateway.name, self.loop.time()
        self.evidence.injected.append(Injected("killed at", name, now, now + 1.5, step))
        self.trace("fault", f"{name} is killed when {step}")
        child.gateway.kill_child(child)
        raise Killed

    def played(self, step: str, child: Child | None = None, key: bytes = b"") -> bool:
        """Let happen what the scene has at a step, and tell whether it has something there."""
        if not self.stage.reached(step, key):
            return False
        self.trace("fault", f"the scene is at {step!r}")
        found = faults.at_step(self._struck, step, child.gateway.name if child else "")
        if found:
            self.loop.start(self.party, faults.inject(self, found))
        elif child is not None:
            self._kill_at(child, step)
        return True

    def executed(self, execution: Execution) -> None:
        self.evidence.executions.append(execution)
        again = " again" if execution.redelivered else ""
        end = "failed" if execution.failed else execution.nonce
        what = f"ran {execution.attempt} {execution.name} as {execution.task_id}{again}: {end}"
        self.trace(execution.worker, what)

    def is_left(self, attempt: str) -> bool:
        """Has the sender of a delivery with an identity left while its task ran?"""
        return any(
            one.id == attempt and one.status == GONE and one.route in IDENTIFIED
            for one in self.evidence.tries
        )

    def worker_died(self, worker: Worker, step: str) -> None:
        now = self.loop.time()
        back = self.random.uniform(0.3, 3.0)
        self.evidence.injected.append(Injected("died", worker.name, now, now + back, step))
        self.trace("fault", f"{worker.name} dies when it has {step}")
        worker.kill()
        self.later(back, worker.start)
        raise Killed

    def _failed(self, party: Party, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, Killed):  # in a task, which is collected when its party is dead
            return
        about = exc if exc is not None else context.get("task")
        text = f"{party.name}: {context['message']}: {about!r}"
        if party.state != DEAD and not (exc is not None and _of_worker(party)):
            self.evidence.logged.append(text)
            if self.lines is not None and exc is not None:
                import traceback

                text += "\n" + "".join(traceback.format_exception(exc))
        self.trace("error", text)

    def is_violation(self, record: logging.LogRecord) -> bool:
        """Tell whether a process must not log this."""
        ours = self.loop.current.name.startswith(("gateway", "person"))
        return ours and record.levelno >= logging.ERROR

    def _observe(self, now: float, one: str, other: str, data: bytes) -> None:
        self.digest.update(_moment(now) + data)
        if self.lines is not None and self.plan.wires:
            self.trace("bytes", f"{one} > {other}: {data[:200]!r}")

    def trace(self, who: str, what: str) -> None:
        self.digest.update(f"{self.loop.time():f} {who} {what}".encode())
        if self.lines is not None:
            self.lines.append(f"{self.loop.time() - self.began:9.4f} {who:9} {what}")


def _of_worker(party: Party) -> bool:
    return party.name.startswith("worker")


class _Logged(logging.Handler):
    """Notes what the product logs as an error."""

    def __init__(self, world: World):
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        party = world.loop.current
        if record.name.startswith("pika"):
            return
        if world.is_violation(record):
            text = f"{party.name}: {record.getMessage()}"
            if record.exc_info:
                text += f": {record.exc_info[1]!r}"
                if world.lines is not None:
                    text += "\n" + logging.Formatter().formatException(record.exc_info)
            world.evidence.logged.append(text)
        if world.lines is not None:
            world.trace(party.name, f"{record.levelname.lower()}: {record.getMessage()}")


def _queue(rng: Random) -> dict[str, Any]:
    """Draw the arguments of a seed's queues: of most, none."""
    kind = rng.random()
    if kind < 0.25:
        limit = rng.choice([1, 2, 20])
        return {
            "x-queue-type": "quorum",
            "x-delivery-limit": limit,
            "x-dead-letter-exchange": DEAD_LETTER_EXCHANGE,
        }
    if kind < 0.4:
        return {"x-max-length": rng.choice([2, 8]), "x-overflow": "reject-publish"}
    return {}


class Plan:
    """What a seed does, as far as it can be taken away: faults, senders, gateways."""

    def __init__(self, seed: int, strategy: str):
        rng = Random(f"plan {strategy} {seed}")
        self.calm = seed % 5 == 0
        self.gateways = rng.randint(2, 4)
        self.seconds = WARM + SECONDS + CALM + AFTER
        self.queue = _queue(Random(f"queues {strategy} {seed}"))
        quorum = self.queue.get("x-queue-type") == "quorum"
        rare = Random(f"rare {strategy} {seed}")
        #: When Redis forgets its scripts, of which nobody may notice anything.
        self.flushes = [rare.uniform(0, self.seconds) for _ in range(rare.choice([0, 0, 1]))]
        self.hasty = rare.choice([0, 0, 12])
        later = Random(f"late {strategy} {seed}")
        self.late, self.replaces = later.choice([0, 0, 12]), later.random() < 0.3
        self.faults = []
        if not self.calm:
            self.faults = faults.draw(rng, self.gateways, SECONDS, quorum)
            self.faults += faults.swallowed(rare, self.gateways, SECONDS)
            if self.late:
                self.faults += faults.killed_late(later, self.gateways, SECONDS)
        chance = Random(f"scene {strategy} {seed}")
        self.scene = scenes.NONE
        if chance.random() < scenes.SHARE and not self.calm:
            self.scene = chance.choice(scenes.SCENES)
        kept = Random(f"expiry {strategy} {seed}")
        self.expires = KEPT
        if self.calm or kept.random() < SHORT:
            self.expires = 25 if self.calm else kept.randint(14, 20)
            if self.faults and kept.random() < RELOADED:
                self.faults = faults.reloads(kept, self.gateways, SECONDS)
                self.scene = scenes.LONG
        self.senders: set[int] | None = None
        self.persons = Random(f"persons {strategy} {seed}").choice([0, 1, 2, 2])
        self.wires = False

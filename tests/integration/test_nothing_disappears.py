"""Each accepted delivery is found in its true state, through a restart of everything."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.stack.server import poll
from tests.faults.seeds import DURABLE
from tests.integration.deliveries import ROOT, URLS, run, send
from tests.integration.lifecycle_tasks import RAN, RELEASED, REPAIRED
from tests.support.config import route
from tests.support.stack import RabbitMQ, Server, Stack

#: How many deliveries; of a thousand, 50 fail and 5 hang, and 5 of all end their workers.
NUMBER = int(os.environ.get("LIFECYCLE", "200"))
FAILS, HANGS, KILLS = NUMBER // 20, max(NUMBER // 200, 1), min(5, NUMBER // 100)
CONFIG = (
    f"""\
journal = 100000
{URLS}
"""
    + route("/fails", "lifecycle.run", queue="lifecycle-fails", answer="accept")
    + route("/well", "lifecycle.run", queue="lifecycle-well", answer="accept")
    + route("/hangs", "lifecycle.run", queue="lifecycle-hangs", answer="accept")
    + route("/kills", "lifecycle.run", queue="lifecycle-kills", answer="accept")
)
EXPECTED = {
    "well": "succeeded", "fails": "failed", "hangs": "running", "kills": "dead-lettered"
}  # fmt: skip


class System:
    """A broker, a durable Redis, workers and a gateway."""

    def __init__(self, stack: Stack, broker: RabbitMQ, directory: Path):
        self.directory, self.broker = directory, broker
        self.config = directory / "gateway.toml"
        self.config.write_text(CONFIG)
        self.redis = stack.redis(*DURABLE)
        self.urls = ["--broker", broker.url, "--result-backend", self.redis.url]

        def worker(pool: str, concurrency: int, *queues: str) -> Server:
            return stack.worker(
                broker.url, self.redis.url, app="tests.integration.lifecycle_tasks", cwd=ROOT,
                pool=pool, concurrency=concurrency, queues=[f"lifecycle-{q}" for q in queues],
                env={"LIFECYCLE_DIRECTORY": str(directory)},
            )  # fmt: skip

        self.workers = [
            worker("prefork", 2, "well", "fails", "kills"),
            worker("threads", HANGS, "hangs"),
        ]
        self.gateway = stack.gateway(
            "--strategy=redis", "--processes=2", *self.urls, "--config", str(self.config)
        )

    @property
    def _all(self) -> list[Server]:
        return [self.gateway, *self.workers, self.redis, self.broker]

    def kill_and_start(self) -> None:
        for server in self._all:
            server.kill()
        for server in reversed(self._all):
            server.restart()

    def stop(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self._all[:-1]))

    def deliveries(self, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
        code = main(["deliveries", args[0], *self.urls, "--config", str(self.config), *args[1:]])
        return code, *capsys.readouterr()


@pytest.fixture
def system(stack: Stack, own_rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[System]:
    system = System(stack, own_rabbitmq, tmp_path)
    yield system
    system.stop()


async def insist(system: System, body: str) -> str:
    """Send a delivery until it is taken, as a sender does; return its id."""
    while True:
        try:
            answer = await send(system.gateway, f"/{body.partition(' ')[0]}", body)
        except (OSError, asyncio.IncompleteReadError):
            answer = None
        if answer is not None and answer.status == 202:
            return str(json.loads(answer.body)["delivery_id"])
        await asyncio.sleep(0.1)


async def accepted(system: System, bodies: list[str]) -> dict[str, str]:
    """Send all, and restart everything when half of them were taken; return bodies by id."""
    taken: dict[str, str] = {}
    waiting = bodies[::-1]
    half = asyncio.Event()

    async def sender() -> None:
        while waiting:
            body = waiting.pop()
            taken[await insist(system, body)] = body
            if len(taken) * 2 >= len(bodies):
                half.set()

    senders = [asyncio.create_task(sender()) for _ in range(20)]
    await half.wait()
    await asyncio.to_thread(system.kill_and_start)
    await asyncio.gather(*senders)
    return taken


def states(system: System, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    code, out, _ = system.deliveries(capsys, "list", "--json", "--limit", "1000000")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    return {one["id"]: one for one in found}


def test_nothing_disappears(system: System, capsys: pytest.CaptureFixture[str]):
    """`LIFECYCLE` is the number of deliveries."""
    numbers = {"fails": FAILS, "hangs": HANGS, "kills": KILLS}
    numbers["well"] = NUMBER - sum(numbers.values())
    # Those of each kind are spread over all of the time.
    rank = sorted((i / n, f"{kind} {i}") for kind, n in numbers.items() for i in range(n))
    bodies = [body for _, body in rank]

    taken = run(accepted(system, bodies))

    assert Counter(body for body in taken.values()) == Counter(bodies)
    wrong: dict[str, str] = {}

    def true() -> bool:
        found = states(system, capsys)
        wrong.clear()
        for one, body in taken.items():
            state = found[one]["state"] if one in found else "not found"
            if state != EXPECTED[body.partition(" ")[0]]:
                wrong[body] = state
        return not wrong

    assert poll(true, 60 + NUMBER / 20), Counter(wrong.values())

    # All that failed are run again by one command: none is lost, and none runs twice. There may be
    # more than were acknowledged, as their gateway was killed before it could answer.
    failed = sum(one["state"] == "failed" for one in states(system, capsys).values())
    (system.directory / REPAIRED).touch()
    code, out, _ = system.deliveries(
        capsys, "replay", "--state", "failed", "--yes", "--wait", str(30 + FAILS / 5)
    )
    assert failed >= FAILS
    assert (code, out.count(" taken: task "), out.count(" SUCCESS")) == (0, failed, failed)
    (system.directory / RELEASED).touch()
    now = EXPECTED | {"fails": "succeeded", "hangs": "succeeded"}

    def ended() -> bool:
        found = states(system, capsys)
        return all(
            found[one]["state"] == now[body.partition(" ")[0]] for one, body in taken.items()
        )

    assert poll(ended, 60 + NUMBER / 20)
    ran = Counter((system.directory / RAN).read_text().splitlines())
    assert sum(number for body, number in ran.items() if body.startswith("fails")) == failed
    assert {body for body in bodies if not body.startswith("kills")} == set(ran)

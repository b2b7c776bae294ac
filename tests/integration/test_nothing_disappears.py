"""Each accepted delivery is found in its true state, through a restart of everything."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter

import pytest

from gateway.stack.server import poll
from tests.faults.seeds import DURABLE
from tests.integration.deliveries import URLS, Servers, insist, run
from tests.integration.tasks import RAN, RELEASED, REPAIRED
from tests.support.config import route
from tests.support.stack import RabbitMQ, Server, Stack

#: How many deliveries; of a thousand, 50 fail and 5 hang, and 5 of all end their workers.
NUMBER = int(os.environ.get("LIFECYCLE", "200"))
FAILS, HANGS, KILLS = NUMBER // 20, max(NUMBER // 200, 1), min(5, NUMBER // 100)
CONFIG = (
    f"journal = 100000\n{URLS}"
    + route("/fails", "lifecycle.run", queue="lifecycle-fails", answer="accept")
    + route("/well", "lifecycle.run", queue="lifecycle-well", answer="accept")
    + route("/hangs", "lifecycle.run", queue="lifecycle-hangs", answer="accept")
    + route("/kills", "lifecycle.run", queue="lifecycle-kills", answer="accept")
)
EXPECTED = {
    "well": "succeeded", "fails": "failed", "hangs": "running", "kills": "dead-lettered"
}  # fmt: skip


@pytest.fixture
def servers(stack: Stack, own_rabbitmq: RabbitMQ) -> Servers:
    """A durable Redis, and workers that are not held up by the tasks which hang."""
    queues = [f"lifecycle-{kind}" for kind in ("well", "fails", "kills")]
    servers = Servers(stack, own_rabbitmq, stack.redis(*DURABLE), queues, concurrency=2)
    servers.start_worker(["lifecycle-hangs"], HANGS, "threads")
    return servers


async def accepted(servers: Servers, gateway: Server, bodies: list[str]) -> dict[str, str]:
    """Send all, and restart everything when half of them were taken; return bodies by id."""
    taken: dict[str, str] = {}
    waiting = bodies[::-1]
    half = asyncio.Event()

    async def sender() -> None:
        while waiting:
            body = waiting.pop()
            answer = await insist(gateway, f"/{body.partition(' ')[0]}", body, 202)
            taken[json.loads(answer.body)["delivery_id"]] = body
            if len(taken) * 2 >= len(bodies):
                half.set()

    senders = [asyncio.create_task(sender()) for _ in range(20)]
    await half.wait()
    await asyncio.to_thread(servers.kill_and_start)
    await asyncio.gather(*senders)
    return taken


def states(servers: Servers, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    code, out, _ = servers.deliveries(capsys, "list", "--json", "--limit", "1000000")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    return {one["id"]: one for one in found}


def test_nothing_disappears(servers: Servers, capsys: pytest.CaptureFixture[str]):
    """`LIFECYCLE` is the number of deliveries."""
    numbers = {"fails": FAILS, "hangs": HANGS, "kills": KILLS}
    numbers["well"] = NUMBER - sum(numbers.values())
    # Those of each kind are spread over all of the time.
    rank = sorted((i / n, f"{kind} {i}") for kind, n in numbers.items() for i in range(n))
    bodies = [body for _, body in rank]

    gateway = servers.gateway("redis", CONFIG, "--processes=2")
    taken = run(accepted(servers, gateway, bodies))

    assert Counter(body for body in taken.values()) == Counter(bodies)
    wrong: dict[str, str] = {}

    def true() -> bool:
        found = states(servers, capsys)
        wrong.clear()
        for one, body in taken.items():
            state = found[one]["state"] if one in found else "not found"
            if state != EXPECTED[body.partition(" ")[0]]:
                wrong[body] = state
        return not wrong

    assert poll(true, 60 + NUMBER / 20), Counter(wrong.values())

    # All that failed are run again by one command: none is lost, and none runs twice. There may be
    # more than were acknowledged, as their gateway was killed before it could answer.
    failed = sum(one["state"] == "failed" for one in states(servers, capsys).values())
    (servers.directory / REPAIRED).touch()
    args = ["--config", str(servers.config), "--state", "failed", "--yes"]
    code, out, _ = servers.deliveries(capsys, "replay", *args, "--wait", str(30 + FAILS / 5))
    assert failed >= FAILS
    assert (code, out.count(" taken: task "), out.count(" SUCCESS")) == (0, failed, failed)
    (servers.directory / RELEASED).touch()
    now = EXPECTED | {"fails": "succeeded", "hangs": "succeeded"}

    def ended() -> bool:
        found = states(servers, capsys)
        return all(
            found[one]["state"] == now[body.partition(" ")[0]] for one, body in taken.items()
        )

    assert poll(ended, 60 + NUMBER / 20)
    ran = Counter((servers.directory / RAN).read_text().splitlines())
    assert sum(number for body, number in ran.items() if body.startswith("fails")) == failed
    assert {body for body in bodies if not body.startswith("kills")} == set(ran)

"""What a gateway with the shipped defaults has resident, whatever is sent to it, is what
docs/reliability.md says, and fits into what deploy/ allows; and it keeps descriptors for itself."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config.settings import Config
from gateway.http.server import OTHER_FILES
from gateway.stack.server import poll
from tests.support.config import route
from tests.support.http_client import Connection, connections, request
from tests.support.requests import fetch, metric
from tests.support.stack import Server, free_port

pytestmark = pytest.mark.usefixtures("unmeasured")

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
SECONDS = 4  # that an attack lasts


def documented(config: Config) -> float:
    """Return the bytes that the document's formula allows."""
    (formula,) = re.findall(
        r"^    (\d+ MiB \+ processes .*)$", (ROOT / "docs/reliability.md").read_text(), re.M
    )
    for word, factor in {"×": "*", "MiB": f"* {MIB}", "KiB": "* 1024"}.items():
        formula = formula.replace(word, factor)
    assert re.fullmatch(r"[\w\s+*()]+", formula)
    return eval(formula, {"__builtins__": {}}, config.model_dump())


def peak(server: Server) -> int:
    """Add up the most that each of its processes has had resident, in bytes."""
    status = (Path(f"/proc/{pid}/status").read_text() for pid in server.pids())
    return sum(int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024 for text in status)


def test_the_defaults_fit_what_is_deployed():
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    chart = yaml.safe_load((ROOT / "deploy/helm/celery-gateway/values.yaml").read_text())
    limits = [chart["gateway"]["resources"]["limits"]["memory"].replace("Mi", "m")]
    limits.append(compose["services"]["gateway"]["mem_limit"])
    # Beside the processes there is a little in memory-backed files.
    least = documented(Config()) + 32 * MIB
    assert [limit for limit in limits if int(limit.removesuffix("m")) * MIB < least] == []
    text = (ROOT / "docs/reliability.md").read_text()
    assert f"which is {documented(Config()) / MIB:.0f} MiB with the defaults" in text
    assert f"allows {limits[0].removesuffix('m')} MiB" in text


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def gateway(start_gateway, rabbitmq, many_files) -> Iterator[Server]:
    """All is as shipped but for the queue, which nobody consumes."""
    gateway = start_gateway(ROUTES)
    yield gateway
    gateway.stop()
    rabbitmq.ctl("delete_queue", "memory")


def begun(length: int, target: str = "/") -> bytes:
    """Write a request's header, whose body is to come."""
    return request(target=target).replace(b"Length: 0", b"Length: %d" % length)


SLOW = [b"x" * 50_000] * 20
FIELDS = [f"X{n}: {'y' * 50}" for n in range(240)]
#: Parsed it takes 27 times its text, which is a thousandth when it is compressed.
PARSED = b'{"id":1,"x":[' + b",".join([b'{"":0}'] * (MIB // 7 - 10)) + b"]}"
ROUTES = (
    route("/", None, queue="memory")
    + route("/reads", None, queue="memory", args=["json:/id"], when={"json:/id": [1]})
    + route("/reads-no", None, queue="memory", when={"json:/id": [2]})
)
#: On how many connections is sent what, in pieces; and the statuses of those that are answered.
ATTACKS = {
    "bodies to a path that does not exist": (300, [begun(MIB, "/no"), *SLOW], {404}),
    "bodies that do not end": (1_000, [begun(MIB), *SLOW], {503}),
    "bodies that are escaped": (100, [request(b"\x01" * MIB)], {503}),
    "bodies": (300, [request(b"x" * MIB)], {503}),
    "bodies whose JSON is read": (110, [request(PARSED, "/reads")], {503}),
    "the same, compressed": (
        110,
        [request(gzip.compress(PARSED), "/reads", "Content-Encoding: gzip")],
        {503},
    ),
    "the same, which no route takes": (110, [request(PARSED, "/reads-no")], {204}),
    "headers": (4_000, [request(b"", "/", *FIELDS)], {503}),
    "requests ahead of the answer": (1_000, [request(), request(b"x" * 200_000) * 2], set()),
    "headers that do not end": (4_000, [request(b"", "/", f"X: {'y' * 15_000}")[:-4]], set()),
}


async def attack(server: Server, number: int, pieces: list[bytes]) -> set[int]:
    """Send `pieces` on so many connections for some seconds; return the answers' statuses."""

    async def send(client: Connection) -> int:
        for piece in pieces:
            client.send(piece)
            await asyncio.wait_for(client.writer.drain(), SECONDS)
        return (await client.answer()).status

    async with connections(server.port, number) as clients:
        tasks = [asyncio.create_task(send(client)) for client in clients]
        await asyncio.wait(tasks, timeout=SECONDS)
        for task in tasks:
            task.cancel()
        # Who is refused may see a reset, as it sends on for longer than it is listened to.
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    return {end for end in ends if isinstance(end, int)}


def test_attacks_are_kept_within_the_documented_bound(gateway, rabbitmq):
    for name, (number, pieces, statuses) in ATTACKS.items():
        answered = asyncio.run(attack(gateway, number, pieces))
        # On a slow machine some are refused, or told that they are too slow, who else are not.
        assert answered - {408, 503} == statuses - {503}, name
        assert peak(gateway) < documented(Config()), name
        assert poll(lambda: fetch(f"{gateway.admin_url}/healthz").status == 200, 60)
        assert poll(lambda: metric(gateway, "gateway_connections_open") == 0, 60)
        assert metric(gateway, "gateway_in_flight") == 0
    with rabbitmq.frozen():
        asyncio.run(attack(gateway, *ATTACKS["bodies"][:2]))
    assert peak(gateway) < documented(Config())


def test_descriptors_are_left_for_the_other_connections(stack):
    nobody = f"127.0.0.1:{free_port()}"
    urls = ("--broker", f"amqp://{nobody}//", "--result-backend", f"redis://{nobody}/0")
    few = ("prlimit", f"--nofile={OTHER_FILES + 10}")
    gateway = stack.gateway(*urls, ready="/healthz", wrapper=few)
    with contextlib.ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
        full = "10 connections are open, which is the limit: new ones wait"
        assert poll(lambda: full in gateway.output(), 10)
    assert "cannot accept" not in gateway.output()

"""Each delivery, and each request that is refused, can be found in the log."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.integration.deliveries import URLS, Servers, gather, keyed, run, send
from tests.support.config import route
from tests.support.http_client import Answer, Connection, ask, request
from tests.support.stack import Server
from tests.support.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "of-these-tests-only"
CONFIG = (
    f'max_body = 1000\ntrusted_proxies = ["127.0.0.1"]\n{URLS}'
    + route("/plain")
    + route("/pointer", args=["json:/id"])
    + route("/forge", source="forge")
    + keyed("/keyed")
    + f"""\
[sources.forge]
scheme = "github"
secrets = "{SECRET}"
"""
)


def lines(gateway: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.output().splitlines() if line.startswith("{")]


def line_of(gateway: Server, answer: Answer, logger: str = "requests") -> dict[str, Any]:
    """Return the only line of `logger` that has the id of an answer."""
    wanted = answer.headers["x-delivery-id"]

    def found() -> list[dict[str, Any]]:
        some = [line for line in lines(gateway) if line["logger"].startswith(logger)]
        return [line for line in some if wanted in json.dumps(line)]

    until(found)
    (line,) = found()
    return line


def test_a_delivery_has_a_line_with_all_that_is_known(servers):
    options = ("--log-format", "json")
    gateway = servers.gateway("pika", f"log_requests = true\n{CONFIG}", *options)
    traced = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01"
    answer = run(send(gateway, "/plain?a=b", "hello", traced))
    line = line_of(gateway, answer)

    delivery = answer.headers["x-delivery-id"]
    (execution,) = servers.executions("hello")
    known = {
        "method": "POST", "path": "/plain", "status": 200, "delivery": delivery, "trace": TRACE,
        "task": execution.task, "route": "/plain", "strategy": "pika", "state": "succeeded",
        "remote": "127.0.0.1",
    }  # fmt: skip
    assert {name: line[name] for name in known} == known
    assert not {"source", "event", "reason"} & line.keys()
    assert line["published_ms"] + line["waited_ms"] == pytest.approx(line["ms"], abs=0.01)
    when = datetime.fromisoformat(line["time"])
    assert when.tzinfo is not None and line["time"].partition(".")[2][:3].isdigit()


def test_of_a_share_only_errors_are_sure_to_have_a_line(servers):
    gateway = servers.gateway("pika", f"log_requests = 1e-9\n{CONFIG}")
    good = run(gather(*(send(gateway, "/plain", "x") for _ in range(50))))
    bad = run(send(gateway, "/plain?seconds=no", "x"))
    assert ({answer.status for answer in good}, bad.status) == ({200}, 502)
    until(lambda: f"delivery={bad.headers['x-delivery-id']}" in gateway.output())
    assert gateway.output().count(" requests: ") == 1


BAD = {
    "400": ("/pointer", "{}", []),
    "401": ("/forge", "{}", ["X-GitHub-Event: push", "X-Hub-Signature-256: sha256=" + "0" * 64]),
    "404": ("/nowhere?token=hidden", "{}", ["X-Forwarded-For: 198.51.100.7"]),
    "404 of a result": ("/results/hidden", "{}", []),
    "409": ("/keyed", "another", ["Idempotency-Key: same"]),
    "413": ("/plain?token=hidden", "x" * 2_000, ["X-Forwarded-For: 198.51.100.7"]),
    "415": ("/plain", "x", ["Content-Encoding: br"]),
}


@pytest.fixture(scope="module")
def quiet(servers: Servers) -> Server:
    """A gateway without lines for each request."""
    return servers.gateway("redis", CONFIG, "--log-format", "json")


@pytest.mark.parametrize("kind", BAD)
def test_a_request_that_is_refused_has_a_line_that_says_why(quiet, kind):
    target, body, headers = BAD[kind]
    if kind == "409":
        assert run(send(quiet, target, "one", *headers)).status == 200
    method = "GET" if "result" in kind else "POST"
    answer = run(send(quiet, target, body, *headers, method=method))
    assert answer.status == int(kind[:3])

    line = line_of(quiet, answer, "gateway.")
    assert answer.problem["delivery_id"] == answer.headers["x-delivery-id"]
    assert line["message"].startswith(
        f"{answer.status} {answer.type}: {answer.problem['detail']} ("
    )
    assert line["level"] == ("warning" if answer.status == 401 else "info")
    remote = "198.51.100.7" if headers and headers[0].startswith("X-Forw") else "127.0.0.1"
    assert line["message"].endswith(f" from {remote})")
    assert ("source forge" in line["message"]) == (target == "/forge")
    for secret in (SECRET, "0" * 64, "hidden"):
        assert secret not in line["message"]


def test_what_is_not_http_has_a_line(quiet):
    answer = run(ask(quiet.port, b"POST /a b HTTP/1.1\r\n\r\n"))
    line = line_of(quiet, answer, "gateway.")
    assert line["message"].startswith(f"400 bad-request: {answer.problem['detail']} (route none, ")


def test_a_flood_of_junk_does_not_flood_the_log(quiet):
    async def flood() -> list[int]:
        async with await Connection.open(quiet.port) as connection:
            return [(await connection.ask(request(b"", "/junk"))).status for _ in range(500)]

    before = len(lines(quiet))
    assert set(run(flood())) == {404}
    answer = run(send(quiet, "/plain?seconds=no", "x"))
    assert answer.status == 502
    line_of(quiet, answer, "gateway.")
    assert len(lines(quiet)) - before < 400  # at most ten a second


def test_each_answer_has_the_id_of_its_own_delivery(quiet):
    answers = run(gather(*(send(quiet, "/plain", "x") for _ in range(3))))
    assert len({answer.headers["x-delivery-id"] for answer in answers}) == 3

"""Requests that were refused before they had a task are kept, where that is asked for."""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial

import pytest

from gateway.cli import main
from tests.integration.deliveries import Servers, gather, keyed, run, send
from tests.integration.test_deliveries import listed
from tests.support.config import route, source
from tests.support.http_client import Answer, Connection, ask, request
from tests.support.requests import fetch
from tests.support.stack import Server
from tests.support.waiting import until

SECRET = "sesame-of-the-shop"
CONFIG = (
    "journal = 100\njournal_refused = true\nbody_timeout = 0.5\nmax_body = 10000"
    + source("slow", "github", secrets=[SECRET], rate=0.001)
    + source("shop", "github", secrets=[SECRET])
    + route("/shop", source="shop")
    + route("/slow", source="slow", idempotency="none")
    + keyed("/keyed")
    + route("/unkept", journal=False, args=["json:/id"])
)
#: Routes that take only some of the deliveries on their path.
CHOOSY = route("/typo", source="shop", events=["order/*"]) + route(
    "/choosy", when={"json:/kind": "paid"}
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"Traceparent: 00-{TRACE}-00f067aa0ba902b7-01"
#: Headers with secrets, none of which may be told.
SECRETS = [
    "Authorization: Bearer hidden-1", "Cookie: session=hidden-2", "Proxy-Authorization: hidden-3",
    "X-Gitlab-Token: hidden-4", "X-Hub-Signature-256: sha256=hidden-5",
    *(f"{name}: hidden-6" for name in ("X-Api-Key", "X-TOTP", "X-Passcode", "X-Pin", "Client")),
    *(f"{name}: hidden-7" for name in ("X-Forwarded-Access-Token", "X-Session-Id", "X-Client-Key")),
]  # fmt: skip


@pytest.fixture
def deliveries(servers: Servers, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `gateway deliveries` on a journal that was empty; return exit code, output and errors."""
    servers.results.client.flushdb()

    return partial(servers.deliveries, capsys)


def signed(body: str) -> list[str]:
    proof = hmac.digest(SECRET.encode(), body.encode(), "sha256").hex()
    return ["X-GitHub-Event: push", f"X-Hub-Signature-256: sha256={proof}"]


async def raw(gateway: Server, data: bytes) -> Answer:
    return await ask(gateway.port, data)


async def refuse(gateway: Server) -> list[Answer]:
    """Return an answer of each kind to a request that is refused before there is a message."""
    await send(gateway, "/slow", "first", *signed("first"))
    secrets = "\r\n".join(SECRETS).encode()
    gzipped = request(b"x", "/shop?hidden-7", "Content-Encoding: gzip", *SECRETS)
    return [
        await raw(gateway, b"POST /shop?hidden-7 HTTP/1.1\r\n" + secrets + b"\r\n\r\n"),
        await raw(gateway, gzipped),
        await send(gateway, "/shop?hidden-7", "forged", *SECRETS),
        await send(gateway, "/nowhere?hidden-7", "lost", *SECRETS),
        await send(gateway, "/shop?hidden-7", "x", *SECRETS, method="PUT"),
        await raw(gateway, request(b"", "/shop", *SECRETS)[:-4] + b"\r\nX-Never: "),
        await send(gateway, "/shop?hidden-7", "x" * 10_001, *SECRETS),
        await raw(
            gateway,
            request(gzip.compress(bytes(10_001)), "/shop", "Content-Encoding: gzip", *SECRETS),
        ),
        await send(gateway, "/shop", "x", "Content-Encoding: br", *SECRETS),
        await send(gateway, "/slow", "again", *signed("again"), "Cookie: hidden-2"),
        await send(gateway, "/shop", "x", f"X-Long: {'y' * 20_000}"),
        await send(gateway, f"/{'y' * 20_000}", "x"),
    ]


KINDS = [
    (400, "bad-request"), (400, "bad-request"), (401, "unverified"), (404, "not-found"),
    (405, "method-not-allowed"), (408, "body-too-slow"), (413, "body-too-large"),
    (413, "body-too-large"), (415, "encoding-not-accepted"), (429, "too-many"),
    (431, "header-too-large"), (414, "uri-too-long"),
]  # fmt: skip


ROUTES = [*["/shop"] * 3, "", "/shop", "", *["/shop"] * 3, "/slow", "", ""]


def test_each_refused_request_is_found_by_its_id_with_its_reason(gateway, deliveries):
    answers = run(refuse(gateway))

    assert [(answer.status, answer.type) for answer in answers] == KINDS
    kept = {each["id"]: each for each in listed(deliveries, 10, "--state", "refused")}
    for answer in answers:
        problem = answer.problem
        delivery_id, reason = problem["delivery_id"], f"{answer.type}: {problem['detail']}"
        assert answer.headers["x-delivery-id"] == delivery_id
        assert f"{answer.status} {reason}" in gateway.output()
    # Of those the journal keeps the last ten.
    entries = [kept[answer.problem["delivery_id"]] for answer in answers[2:]]
    assert [(entry["status"], entry["route"]) for entry in entries] == [
        (status, route) for (status, _), route in zip(KINDS[2:], ROUTES[2:], strict=True)
    ]
    assert all(entry["error"] and entry["remote"] == "127.0.0.1" for entry in entries)
    assert "hidden" not in gateway.output() and SECRET not in gateway.output()
    for entry in entries:
        shown = deliveries("show", entry["id"])[1]
        assert "hidden" not in shown and SECRET not in shown


def test_what_was_sent_is_kept_without_secrets_and_cut(gateway, deliveries):
    body = "ü" * 4_000
    headers = ["X-Shop-Event: paid", f"X-Long-Topic: {'z' * 2_000}", TRACEPARENT]
    many = [f"X-N{n}-Event: {'z' * 400}" for n in range(20)]
    run(send(gateway, "/shop?token=hidden", body, *headers, *SECRETS))
    run(send(gateway, "/lost", "short", *many))

    lost, cut = listed(deliveries, 2, "--state", "refused", "--status", "4xx")

    assert cut["request"] == {"method": "POST", "path": "/shop", "truncated": True}
    assert cut["traceparent"].split("-")[1] == TRACE
    shown = json.loads(deliveries("show", cut["id"])[1])
    assert shown["body"] == "ü" * 2_048
    assert shown["headers"]["x-shop-event"] == "paid"
    assert len(shown["headers"]["x-long-topic"]) == 500
    assert not {line.split(":")[0].lower() for line in SECRETS} & shown["headers"].keys()
    assert lost["request"] == {"method": "POST", "path": "/lost", "truncated": False}
    shown = json.loads(deliveries("show", lost["id"])[1])
    assert shown["body"] == "short" and 5 < len(shown["headers"]) < 15
    assert [each["id"] for each in listed(deliveries, 1, "--route", "/lost*")] == [lost["id"]]


def test_it_cannot_be_replayed_nor_forwarded_and_is_found_by_the_api(gateway, deliveries, capsys):
    run(send(gateway, "/keyed", "taken", "Idempotency-Key: 1"))
    conflict = run(send(gateway, "/keyed", "another", "Idempotency-Key: 1"))
    assert (conflict.status, conflict.type) == (409, "key-conflict")
    delivery_id = conflict.problem["delivery_id"]
    run(send(gateway, "/shop", "forged"))
    refused, *_ = listed(deliveries, 3)

    code, out, _ = deliveries("replay", refused["id"])
    assert code == 1
    assert out.startswith(
        f"{refused['id']} cannot be replayed as it was: it had no message: unverified: "
    )
    _, out, err = deliveries("replay", "--state", "refused", "--dry-run")
    assert refused["id"] not in out + err and delivery_id in err
    api = f"{gateway.admin_url}/api/deliveries"
    (found,) = json.loads(fetch(f"{api}?state=refused&status=401").body)["deliveries"]
    assert found["request"] == {"method": "POST", "path": "/shop", "truncated": False}
    whole = json.loads(fetch(f"{api}/{refused['id']}").body)
    assert (whole["replayable"], whole["call"]["args"][2]) == (False, "forged")
    assert main(["forward", "--to", "http://127.0.0.1:9", "--admin", gateway.admin_url,
                 "--id", refused["id"]]) == 1  # fmt: skip
    assert "not sent: it was refused: unverified: " in capsys.readouterr().out


def test_a_flood_of_refused_requests_leaves_the_deliveries(gateway, deliveries):
    # Given deliveries that fill the journal,
    bodies = [f"real-{n}" for n in range(100)]
    run(gather(*(send(gateway, "/keyed", each, f"Idempotency-Key: {each}") for each in bodies)))
    real = {each["id"] for each in listed(deliveries, 100, "--limit", "1000")}

    # when requests without a signature come from one address, and then from many,
    async def flood(number: int, addresses: int) -> None:
        async with await Connection.open(gateway.port) as connection:
            for n in range(number):
                own = f"X-Forwarded-For: 192.0.2.{n % addresses}"
                assert (await connection.ask(request(b"junk", "/shop", own))).status == 401

    run(flood(300, 1))
    until(lambda: len(listed(deliveries, 105, "--limit", "1000")) == 105)
    run(flood(300, 30))
    run(send(gateway, "/nowhere", "seldom"))

    # then few of them are kept, others are found among them, and each delivery is still there.
    until(lambda: listed(deliveries, 1, "--status", "404"))
    kept = listed(deliveries, 110, "--limit", "1000")
    refused = [each for each in kept if each["request"]]
    assert len(refused) == 10 and {each["status"] for each in refused} == {401, 404}
    assert real == {each["id"] for each in kept} - {each["id"] for each in refused}
    # The newest is the first, over several pages.
    times = [datetime.fromisoformat(each["received_at"]) for each in refused]
    assert times == sorted(times, reverse=True)


def test_a_route_without_a_journal_keeps_no_refused_requests_either(gateway, deliveries):
    refused = run(send(gateway, "/unkept", "{}"))
    result = run(send(gateway, "/results/hidden-8", "", method="GET"))
    assert (refused.status, result.status) == (400, 404)
    for target, method in (("/unkept", "PUT"), ("/results/hidden-8", "POST")):
        early = run(raw(gateway, request(b"not whole", target, method=method)[:-1]))
        assert early.status == 405
    run(send(gateway, "/nowhere", "x"))
    (kept,) = listed(deliveries, 1)
    assert kept["status"] == 404 and kept["request"]["path"] == "/nowhere"


def test_the_journal_has_no_refused_requests_unless_they_are_asked_for(servers, deliveries):
    gateway = servers.gateway("redis", CONFIG.replace("journal_refused = true", ""))
    assert run(send(gateway, "/shop", "forged")).status == 401
    assert run(send(gateway, "/shop", "taken", *signed("taken"))).status == 200
    (entry,) = listed(deliveries, 1)
    assert (entry["state"], entry["request"]) == ("succeeded", None)


def test_what_does_not_arrive_in_time_is_kept_with_its_route(gateway, deliveries):
    async def slow() -> Answer:
        async with await Connection.open(gateway.port) as connection:
            connection.send(request(b"whole", "/shop")[:-1])
            async with asyncio.timeout(30):
                return await connection.answer()

    late = run(slow())
    (entry,) = listed(deliveries, 1)
    assert (late.status, entry["id"]) == (408, late.problem["delivery_id"])
    assert (entry["route"], entry["source"]) == ("/shop", "shop")
    assert entry["request"] == {"method": "POST", "path": "/shop", "truncated": True}


def test_what_no_route_takes_is_ignored_and_found_with_its_reason(servers, deliveries, capsys):
    # Given a gateway that keeps no refused requests,
    gateway = servers.gateway("redis", CONFIG.replace("journal_refused = true", "") + CHOOSY)

    # when no route takes what is sent,
    typo = run(send(gateway, "/typo", "created", *signed("created"), *SECRETS[:4]))
    filtered = run(send(gateway, "/choosy", '{"kind": "free"}'))
    unread = run(send(gateway, "/choosy", '{"kind": "pa'))

    # then it is told what cannot be read, and the others are in the journal.
    assert [each.status for each in (typo, filtered, unread)] == [204, 204, 400]
    assert unread.type == "bad-request"
    other, first = listed(deliveries, 2, "--state", "ignored")
    assert [each["id"] for each in (first, other)] == [
        each.headers["x-delivery-id"] for each in (typo, filtered)
    ]
    assert first["error"] == "no route takes the event 'push'" and first["event"] == "push"
    assert other["error"] == "the `when` of no route takes it" and other["status"] == 204
    line = deliveries("list", "--event", "push")[1].splitlines()[-1]
    assert " ignored " in line and "no route takes the event 'push'" in line
    shown = json.loads(deliveries("show", first["id"])[1])
    assert shown["body"] == "created" and "hidden" not in json.dumps(shown)
    # There is no message that could be published again.
    code, out, _ = deliveries("replay", first["id"])
    assert code == 1 and "it had no message: no route takes the event" in out
    api = f"{gateway.admin_url}/api/deliveries"
    found = json.loads(fetch(f"{api}?state=ignored&event=push").body)["deliveries"]
    assert [(each["state"], each["request"]["path"]) for each in found] == [("ignored", "/typo")]
    assert main(["forward", "--to", "http://127.0.0.1:9", "--admin", gateway.admin_url,
                 "--id", first["id"]]) == 1  # fmt: skip
    assert "not sent: it was ignored: no route takes" in capsys.readouterr().out

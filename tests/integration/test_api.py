"""The admin port's API: deliveries are found, shown, followed and replayed, by who may do that."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from gateway.nesting import MAX_LEVELS
from gateway.stack.server import poll
from tests.integration.deliveries import URLS, Servers, answered, keyed, run, send
from tests.support.config import route
from tests.support.redis_kinds import account
from tests.support.requests import fetch
from tests.support.stack import Server

TOKEN = "of-these-tests-only"
CONFIG = (
    f'journal = 1000\nstate_prefix = "api"\n{URLS}'
    + route("/accept", answer="accept")
    + route("/wait")
    + route("/gone", exchange="there.is.none", routing_key="x")
    + route("/needs", args=["json:/no/such"])
    + route("/pointer", args=["json:"])
    + keyed("/once")
)


@pytest.fixture(scope="module")
def closed(servers: Servers) -> Server:
    """A gateway with a token."""
    return servers.gateway("pika", f'admin_token = "{TOKEN}"\n{CONFIG}')


@pytest.fixture(autouse=True)
def empty(servers: Servers) -> None:
    servers.results.client.flushdb()


Found = tuple[int, dict[str, str], Any]


def ask(server: Server, path: str, method: str = "GET", /, *headers: str, **query: Any) -> Found:
    """Return status, headers and JSON of an answer of the API."""
    url = f"{server.admin_url}/api/{path}" + (f"?{urlencode(query)}" if query else "")
    answer = fetch(url, *headers, method=method)
    return answer.status, answer.headers, json.loads(answer.body)


def problem(found: Found) -> tuple[int, str, str]:
    """Return status, type and detail of problem details, whose form is checked."""
    status, headers, body = found
    assert headers["content-type"] == "application/problem+json"
    assert body.keys() == {"type", "title", "status", "detail"} and body["status"] == status
    return status, body["type"].removeprefix("urn:celery-gateway:"), body["detail"]


def states(server: Server, **query: Any) -> list[str]:
    status, _, page = ask(server, "deliveries", **query)
    assert status == 200
    return [each["state"] for each in page["deliveries"]]


def one(server: Server, target: str, body: str, state: str = "failed") -> dict[str, Any]:
    """Send a delivery; return what is listed of it once it is in this state, as the only one."""
    answered(server, target, body)
    assert poll(lambda: states(server) == [state], 30)
    return ask(server, "deliveries")[2]["deliveries"][0]


def schema(server: Server, path: str, method: str) -> Draft202012Validator:
    """Return what validates an operation's answer, by the document that the gateway serves."""
    _, _, document = ask(server, "openapi.json")
    answer = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]
    return Draft202012Validator({**answer["schema"], "components": document["components"]})


def test_deliveries_are_found_and_shown_as_the_document_says(gateway):
    assert answered(gateway, "/wait?a=b", "well") == [200]
    assert answered(gateway, "/wait?seconds=no", "bad") == [502]
    assert poll(lambda: states(gateway) == ["failed", "succeeded"], 30)

    status, headers, page = ask(gateway, "deliveries", state="failed,expired", status="5xx")
    assert (status, headers["cache-control"], page["next"]) == (200, "no-store", None)
    schema(gateway, "/api/deliveries", "get").validate(page)
    (bad,) = page["deliveries"]
    assert bad["error"] == "task-failed: ValueError: could not convert string to float: 'no'"

    _, _, (well,) = (*ask(gateway, "deliveries", text="well")[:2], states(gateway, text="well"))
    assert well == "succeeded"
    status, _, shown = ask(gateway, f"deliveries/{bad['id']}")
    schema(gateway, "/api/deliveries/{id}", "get").validate(shown)
    assert (shown["call"]["args"][2], shown["query_string"]) == ("bad", "seconds=no")
    assert shown["call"]["args"][0] == {"seconds": "no"} and shown["replayable"]


def test_a_deep_argument_is_shown(gateway):
    deepest = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    found = one(gateway, "/pointer", deepest)  # the task takes three arguments
    status, _, shown = ask(gateway, f"deliveries/{found['id']}")
    (argument,) = shown["call"]["args"]
    assert (status, json.dumps(argument)) == (200, deepest)


def test_pages_have_each_delivery_once(gateway):
    assert set(answered(gateway, "/wait", *(f"{n}" for n in range(25)))) == {200}
    assert poll(lambda: len(states(gateway, limit=500)) == 25, 30)
    found, before = [], ""
    for _ in range(3):
        _, _, page = ask(gateway, "deliveries", limit=10, before=before)
        found += [each["id"] for each in page["deliveries"]]
        before = page["next"]
        # What is received meanwhile moves no page.
        assert answered(gateway, "/wait", "later") == [200]
    assert (len(found), len(set(found)), before) == (25, 25, None)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"state": "lost"}, "state: lost: is none of received, refused,"),
        ({"status": "abc"}, "status: abc: is not a status; write 502"),
        ({"before": "9" * 20 + "-0"}, "before: has to be written as an earlier answer has it"),
        ({"since": "yesterday"}, "since: yesterday: is not a time; write"),
        ({"until": "9999-12-31T23:59:59.9999Z"}, "until: 9999-12-31T23:59:59.9999Z: is not a time"),
        ({"route": "price"}, "route: price: is not a path; write"),
        ({"limit": "0"}, "limit: has to be 1 or more"),
        ({"limit": "many"}, "limit: has to be a whole number"),
        ({"before": "x"}, "before: has to be written as an earlier answer has it"),
        ({"colour": "red"}, "colour: there is no such parameter; there are state,"),
        ([("state", "failed"), ("state", "expired")], "state: give it once"),
    ],
)
def test_a_wrong_parameter_is_told(gateway, query, said):
    url = f"deliveries?{urlencode(query)}"
    status, kind, detail = problem(ask(gateway, url))
    assert (status, kind) == (400, "bad-request") and detail.startswith(said)


def test_what_is_not_there_is_told(gateway, servers):
    assert problem(ask(gateway, "deliveries/none"))[:2] == (404, "not-found")
    assert problem(ask(gateway, "deliveries/none/replay", "POST"))[:2] == (404, "not-found")
    assert problem(ask(gateway, "elsewhere"))[:2] == (404, "not-found")
    refused = ask(gateway, "deliveries", "POST")
    assert problem(refused)[:2] == (405, "method-not-allowed")
    assert refused[1]["allow"] == "GET"
    for path, method in (("openapi.json", "DELETE"), ("replays", "GET")):
        assert problem(ask(gateway, path, method))[:2] == (405, "method-not-allowed")
    without = servers.gateway("redis", CONFIG.replace("journal = 1000", ""))
    assert problem(ask(without, "deliveries"))[:2] == (404, "no-journal")
    assert "Nothing is counted" in page(without, "failures")


def test_one_is_replayed(gateway):
    found = one(gateway, "/wait?seconds=no", "bad")

    status, _, replayed = ask(gateway, f"deliveries/{found['id']}/replay", "POST")

    schema(gateway, "/api/deliveries/{id}/replay", "post").validate(replayed)
    assert (status, replayed["problem"]) == (200, "")
    assert replayed["task_id"] != found["task_id"]
    assert poll(lambda: states(gateway) == ["failed"], 30)
    (again,) = ask(gateway, "deliveries")[2]["deliveries"]
    assert (again["replays"], again["task_id"]) == (1, replayed["task_id"])


def test_one_that_cannot_be_replayed_is_a_conflict(gateway, servers):
    key = "Idempotency-Key: conflict"
    for path in ("/once?seconds=no", "/once"):
        run(send(gateway, path, "conflict", key))
    assert poll(lambda: sorted(states(gateway)) == ["failed", "succeeded"], 30)
    well, bad = ask(gateway, "deliveries")[2]["deliveries"]
    path = f"deliveries/{bad['id']}/replay"

    why = f"{well['id']} is another try of the same delivery, succeeded; see `again`"
    assert problem(ask(gateway, path, "POST")) == (409, "may-have-run", why)
    assert ask(gateway, path, "POST", again="true")[0] == 200

    # One that an interrupted replay may have published.
    servers.results.client.hset(f"api:{{journal}}:delivery:{well['id']}", "replaying", "task-7")
    status, kind, said = problem(ask(gateway, f"deliveries/{well['id']}/replay", "POST"))
    assert (status, kind) == (409, "may-have-run") and said.endswith("see `again`: task task-7")


def test_what_had_no_message_cannot_be_replayed(gateway):
    found = one(gateway, "/needs", "{}", "refused")
    for query in ({}, {"again": "true"}):
        refused = ask(gateway, f"deliveries/{found['id']}/replay", "POST", **query)
        assert problem(refused)[:2] == (409, "not-replayed")


def test_what_the_broker_does_not_take_is_unavailable(servers, gateway):
    found = one(gateway, "/gone", "nobody", "refused")

    status, kind, said = problem(ask(gateway, f"deliveries/{found['id']}/replay", "POST"))

    assert (status, kind) == (503, "unavailable") and said.startswith("not taken: ")
    assert ask(gateway, f"deliveries/{found['id']}")[2]["replays"] == 0


def test_replays_with_a_rate_take_their_time(gateway):
    bodies = [f"slow-{n}" for n in range(5)]
    assert set(answered(gateway, "/wait?seconds=no", *bodies)) == {502}
    assert poll(lambda: states(gateway).count("failed") == 5, 30)

    begun = time.monotonic()
    _, _, some = ask(gateway, "replays", "POST", state="failed", rate=4, limit=3)
    assert time.monotonic() - begun >= 0.5
    assert (len(some["replayed"]), some["left"]) == (3, 2)
    # A request replays as many as a minute has room for.
    _, _, more = ask(
        gateway, "replays", "POST", state="failed", rate=1 / 60, after=some["next"], to=some["to"]
    )
    assert (len(more["replayed"]), more["left"]) == (1, 1)
    for wrong in ("0", "-1", "nan", "inf", "1e308", "0.01", "fast"):
        found = ask(gateway, "replays", "POST", state="failed", rate=wrong)
        assert problem(found)[:2] == (400, "bad-request")


def test_all_that_a_filter_takes_are_replayed_part_by_part(gateway, servers):
    bodies = [f"part-{n}" for n in range(12)]
    assert set(answered(gateway, "/accept?until=repaired&seconds=no", *bodies)) == {202}
    key = "Idempotency-Key: same"
    run(send(gateway, "/once?seconds=no", "same", key))
    run(send(gateway, "/once", "same", key))
    assert poll(lambda: states(gateway, limit=500).count("failed") == 13, 60)
    servers.release("repaired")
    assert problem(ask(gateway, "replays", "POST"))[:2] == (400, "bad-request")

    _, _, would = ask(gateway, "replays", "POST", state="failed", dry_run="true", limit=500)
    schema(gateway, "/api/replays", "post").validate(would)
    assert (len(would["would_be"]), would["replayed"], would["left"]) == (12, [], 0)
    (left_out,) = would["left_out"]
    assert left_out["state"] == "succeeded"

    # Those that are replayed fail again, and are not found again by what follows `next`.
    taken: list[str] = []
    after = ""
    for left in (7, 2, 0):
        _, _, some = ask(gateway, "replays", "POST", state="failed", limit=5, after=after)
        assert {each["problem"] for each in some["replayed"]} == {""} and some["left"] == left
        taken += [each["delivery_id"] for each in some["replayed"]]
        after = some["next"]
    assert (taken, after) == (would["would_be"], None)


def page(server: Server, path: str) -> str:
    return fetch(f"{server.admin_url}/{path}").body.decode()


def change(server: Server, path: str, *headers: str) -> int:
    return fetch(f"{server.admin_url}/{path}", *headers, method="POST").status


def test_groups_of_failures_are_listed_muted_resolved_and_replayed(gateway):
    assert set(answered(gateway, "/wait?seconds=no", "a", "b")) == {502}

    def groups() -> list[Any]:
        status, _, found = ask(gateway, "failures")
        schema(gateway, "/api/failures", "get").validate(found)
        assert (status, found["notify"]) == (200, "")
        return found["groups"]

    assert poll(lambda: [each["count"] for each in groups()] == [2], 30)
    (group,) = groups()
    assert group["type"] == "ValueError"
    assert group["text"] == "could not convert string to float: {text}"
    assert (group["state"], group["end"], sum(group["hours"])) == ("new", "failed", 2)
    found = ask(gateway, "deliveries", group=group["id"])[2]["deliveries"]
    assert len(found) == 2 and set(group["latest"]) == {each["id"] for each in found}

    path = f"failures/{group['id']}"
    assert "could not convert string to float" in page(gateway, "failures")
    shown = page(gateway, path)
    assert f"deliveries/{group['latest'][0]}" in shown and f"again?group={group['id']}" in shown
    assert change(gateway, f"{path}/resolve") == 403  # no page of ours asks
    assert change(gateway, f"{path}/resolve", "X-Gateway-Page: 1") == 200
    assert 'aria-current="true">Resolved' in page(gateway, path)
    assert change(gateway, f"{path}/mute?until=0s", "X-Gateway-Page: 1") == 200
    assert change(gateway, "notify/test", "X-Gateway-Page: 1") == 404
    assert "There is no such group" in page(gateway, f"failures/{'0' * 16}")
    assert ask(gateway, f"{path}/mute", "POST", until="2h")[0] == 200
    assert [each["state"] for each in groups()] == ["resolved"]
    assert ask(gateway, f"{path}/resolve", "POST")[0] == 200
    assert [each["state"] for each in groups()] == ["resolved"]
    wrong = ask(gateway, f"{path}/mute", "POST", until="soon")
    assert problem(wrong)[:2] == (400, "bad-request")
    none = ask(gateway, f"failures/{'0' * 16}/resolve", "POST")
    assert problem(none)[:2] == (404, "not-found")
    assert problem(ask(gateway, "notify/test", "POST"))[:2] == (404, "not-found")

    _, _, some = ask(gateway, f"{path}/replay", "POST", limit=1)
    assert (len(some["replayed"]), some["left"]) == (1, 1)
    assert poll(lambda: [(each["state"], each["count"]) for each in groups()] == [("again", 3)], 30)


def without(servers: Servers, command: str) -> Server:
    """Start a gateway whose account in the journal's Redis may not run a command."""
    url = account(servers.results, command)
    return servers.gateway("redis", f'state_url = "{url}"\n{CONFIG}')


def test_a_replay_that_the_journal_cannot_note_is_told_with_its_task(servers, gateway):
    found = one(gateway, "/wait?seconds=no", "unnoted")
    path = f"deliveries/{found['id']}/replay"

    weak = without(servers, "hset")  # the first command, before it is published
    status, kind, said = problem(ask(weak, path, "POST"))
    assert (status, kind) == (503, "unavailable") and said.startswith("it may have been replayed: ")
    assert len(servers.executions("unnoted")) == 0

    weak = without(servers, "hdel")  # the first one after it
    status, kind, said = problem(ask(weak, path, "POST"))
    assert (status, kind) == (503, "unavailable") and said.startswith("it was published, which ")
    task = said.rpartition(": task ")[2]
    # Until it would have ended it is under way.
    assert poll(lambda: problem(ask(weak, path, "POST"))[:2] == (409, "may-have-run"), 30)
    assert ask(gateway, f"deliveries/{found['id']}")[2]["replaying"] == task


def test_who_may_not_publish_replays_each_once(servers, gateway):
    found = one(gateway, "/wait?seconds=no", "unpublished")
    weak = without(servers, "publish")
    status, _, replayed = ask(weak, f"deliveries/{found['id']}/replay", "POST")
    assert status == 200
    shown = ask(gateway, f"deliveries/{found['id']}")[2]
    assert (shown["task_id"], shown["replays"]) == (replayed["task_id"], 1)


def test_a_replay_is_told_that_the_gateway_ends(servers):
    gateway = servers.gateway("redis", CONFIG)
    assert set(answered(gateway, "/wait?seconds=no", *"abcdef")) == {502}
    assert poll(lambda: states(gateway).count("failed") == 6, 30)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, gateway, "replays", "POST", state="failed", rate=1)
        found = lambda: ask(gateway, "deliveries")[2]["deliveries"]  # noqa: E731
        assert poll(lambda: any(each["replays"] for each in found()), 30)
        os.kill(gateway.pid, signal.SIGTERM)
        status, kind, said = problem(asked.result())
        assert (status, kind) == (503, "unavailable")
        assert said.startswith("the gateway ends; ")
    gateway.stop()
    assert "Traceback" not in gateway.output()


def test_a_reload_does_not_open_the_port_to_everybody(servers):
    gateway = servers.gateway("redis", f'admin_host = "0.0.0.0"\nadmin_token = "{TOKEN}"\n{CONFIG}')
    servers.config.write_text(CONFIG)
    os.kill(gateway.pid, signal.SIGHUP)
    assert poll(lambda: "not reloaded: admin_token: everybody" in gateway.output(), 30)
    assert problem(ask(gateway, "deliveries"))[:2] == (401, "unauthorized")


def test_who_may_ask(gateway, closed):
    authorized = f"Authorization: Bearer {TOKEN}"
    assert ask(closed, "deliveries", "GET", authorized)[0] == 200
    for headers in ([], ["Authorization: Bearer other"], [f"Authorization: Basic {TOKEN}"]):
        refused = ask(closed, "deliveries", "GET", *headers)
        assert problem(refused)[:2] == (401, "unauthorized")
        assert refused[1]["www-authenticate"] == "Bearer"
    # A name that leads here is not an address, and may be anybody's.
    rebound = ask(gateway, "deliveries", "GET", "Host: rebound.example")
    assert problem(rebound)[:2] == (403, "forbidden")
    for host in ("localhost:1", "127.0.0.1", "[::1]:9464"):
        assert ask(gateway, "deliveries", "GET", f"Host: {host}")[0] == 200
    assert ask(closed, "deliveries", "GET", authorized, "Host: gateway.example")[0] == 200
    # Another page, in a browser that has the admin port's page open.
    other = "Origin: http://evil.example"
    assert problem(ask(gateway, "replays", "POST", other, state="failed"))[:2] == (403, "forbidden")
    foreign = ask(gateway, "deliveries", "GET", "Sec-Fetch-Site: cross-site")
    assert problem(foreign)[:2] == (403, "forbidden")
    own = f"Origin: {gateway.admin_url}"
    assert ask(gateway, "replays", "POST", own, state="failed")[0] == 200


def test_the_document_is_valid_and_has_each_operation(gateway):
    _, _, document = ask(gateway, "openapi.json")
    validate(document)
    assert {path: set(methods) for path, methods in document["paths"].items()} == {
        "/api/deliveries": {"get"}, "/api/deliveries/{id}": {"get"},
        "/api/deliveries/{id}/replay": {"post"}, "/api/replays": {"post"}, "/api/failures": {"get"},
        **{f"/api/failures/{{id}}/{name}": {"post"} for name in ("mute", "resolve", "replay")},
        "/api/notify/test": {"post"}, "/api/history": {"get"}, "/api/gateways": {"get"},
    }  # fmt: skip


def test_a_redis_that_is_away_is_told(stack, start, servers, tmp_path):
    state = start(stack.redis)
    gateway = servers.gateway("redis", f'state_url = "{state.url}"\n{CONFIG}')
    with state.frozen():
        assert problem(ask(gateway, "deliveries"))[:2] == (503, "unavailable")
    assert ask(gateway, "deliveries")[0] == 200

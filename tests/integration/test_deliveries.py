"""The journal: what was received is listed, shown, and run again."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable

import pytest

from gateway.cli import main
from gateway.stack.server import poll
from gateway.stores import pipeline
from tests.integration.deliveries import URLS, Servers, gather, run, send
from tests.support.config import route, source
from tests.support.http_client import ask, request
from tests.support.requests import metric
from tests.support.stack import Server, free_port, shared

CONFIG = (
    URLS
    + source("shop", "github", secrets=["sesame"])
    + route("/orders/{shop}")
    + route("/accept", answer="accept")
    + route("/later", queue="journal-later", deadline=1.0)
    + route("/deleted", queue="journal-deleted", deadline=1.0)
    + route("/signed", source="shop")
    + route("/needs", args=["json:/id"])
    + route("/also-needs", also=[{"task": "faults.run", "args": ["json:/id"]}])
)


@pytest.fixture(scope="module")
def start_gateway(servers: Servers) -> Callable[[str, int], Server]:
    """Start a gateway, or return the one that another test has started."""
    return shared(
        lambda strategy, journal: servers.gateway(strategy, f"journal = {journal}\n{CONFIG}")
    )


@pytest.fixture
def gateway(start_gateway, redis_server: Server) -> Callable[..., Server]:
    """Return a gateway on an empty journal."""
    redis_server.client.flushdb()
    return lambda strategy="redis", journal=100: start_gateway(strategy, journal)


@pytest.fixture
def deliveries(servers: Servers, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run `gateway deliveries`; return the exit code, standard output and error."""

    config = tmp_path / "gateway.toml"
    # The gateway has declared this queue; the command leaves it as it is.
    queue = 'queue = "journal-deleted"\n'
    declared = CONFIG.replace(queue, f"{queue}declare = false\n")
    config.write_text(f"journal = 100\n{declared}")

    def deliveries(command: str, *args: str) -> tuple[int, str, str]:
        own = ["--config", str(config)] if command == "replay" else []
        return servers.deliveries(capsys, command, *own, *args)

    return deliveries


def listed(deliveries, number: int, *args: str) -> list[dict]:
    """Return what is listed once it is so many; what is written is written after the answer."""
    found: list[dict] = []

    def there() -> bool:
        code, out, _ = deliveries("list", "--json", *args)
        assert code == 0
        found[:] = [json.loads(line) for line in out.splitlines()]
        return len(found) >= number

    assert poll(there, 30)
    return found


def test_groups_of_failures_are_listed_and_changed(gateway, deliveries, capsys):
    code, out, err = deliveries("groups")
    assert (code, out, err) == (0, "", "gateway: nothing has failed\n")
    assert run(send(gateway(), "/orders/7?seconds=no-number", "a bad one")).status == 502
    assert poll(lambda: deliveries("groups")[1], 30)

    head, line = deliveries("groups")[1].splitlines()
    assert head.split()[:4] == ["last", "group", "state", "count"]
    _, group, state, count, route, task, *_ = line.split()
    known = (state, count, route, task)
    assert known == ("new", "1", "/orders/{shop}", "faults.run")
    assert len(listed(deliveries, 1, "--group", group)) == 1
    code, out, _ = deliveries("mute", group, "--until", "2h")
    assert code == 0 and out.startswith(f"{group} is muted until ")
    code, out, err = deliveries("resolve", group)
    assert (code, out) == (0, f"{group} is resolved\n") and "audit: resolve by " in err
    (found,) = map(json.loads, deliveries("groups", "--json")[1].splitlines())
    assert (found["id"], found["state"]) == (group, "resolved")

    code, _, err = deliveries("resolve", "0" * 16)
    assert code == 1 and "there is no such group of failures" in err
    with pytest.raises(SystemExit):
        deliveries("mute", group, "--until", "soon")
    assert "soon: is not a time" in capsys.readouterr().err


@pytest.mark.parametrize("strategy", ["redis", "pika"])
def test_deliveries_are_listed_and_shown(gateway, deliveries, strategy):
    server = gateway(strategy)
    assert run(send(server, "/orders/7?size=9&seconds=0", "an order")).status == 200
    assert run(send(server, "/orders/7?seconds=no-number", "a bad one")).status == 502

    bad, good = listed(deliveries, 2)
    assert (bad["status"], good["status"]) == (502, 200)
    why = "task-failed: ValueError: could not convert string to float: 'no-number'"
    assert (bad["error"], good["error"]) == (why, "")
    assert good["route"] == "/orders/{shop}" and good["params"] == {"shop": "7"}
    assert (good["task"], good["queue"]) == ("faults.run", "celery")
    assert [each["id"] for each in listed(deliveries, 1, "--status", "5xx")] == [bad["id"]]
    assert listed(deliveries, 0, "--route", "/later") == []
    assert len(listed(deliveries, 1, "--limit", "1")) == 1

    code, out, _ = deliveries("list")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:]] == [bad["id"], good["id"]]
    code, out, _ = deliveries("show", good["id"])
    shown = json.loads(out)
    assert json.loads(deliveries("show", "--json", good["id"])[1].rstrip("\n")) == shown
    assert deliveries("show", "--json", good["id"])[1].count("\n") == 1
    assert code == 0 and shown["query"] == {"size": "9", "seconds": "0"}
    assert (shown["body"], shown["remote"]) == ("an order", "127.0.0.1")
    # With `pika` nothing of a plain route is stored, and nothing has to be.
    assert shown["task_state"] == ("SUCCESS" if strategy == "redis" else None)


def test_what_had_no_worker_is_run_by_a_replay(servers, gateway, deliveries):
    # Given deliveries whose tasks nobody has begun in time,
    bodies = [f"unheard-{n}" for n in range(4)]
    server, pika = gateway("redis"), gateway("pika")
    for first, second in (bodies[:2], bodies[2:]):
        late = run(gather(send(server, "/later", first), send(pika, "/later", second)))
        assert [answer.status for answer in late] == [504, 504]
    entries = listed(deliveries, 4)
    # and which have expired since,
    expired = time.time() + 0.5 + 2
    assert poll(lambda: time.time() > expired, 30)
    servers.start_worker(["journal-later"], 1)
    # when they are replayed,
    entries.sort(key=lambda entry: json.loads(deliveries("show", entry["id"])[1])["body"])
    code, out, err = deliveries("replay", *(entry["id"] for entry in entries))
    # Which of them have expired is known once a worker has discarded them, and a gateway looked.
    assert err.startswith("of 4 to replay, ")
    # then they run in the order in which they were named, as tasks of their own,
    ran = servers.executions("unheard-")
    assert code == 0 and [one.id for one in ran] == bodies
    told = [f"{e['id']} taken: task {one.task}" for e, one in zip(entries, ran, strict=True)]
    assert out.splitlines()[:4] == told
    assert sorted(out.splitlines()[4:]) == sorted(f"{entry['id']} SUCCESS" for entry in entries)
    # and each time that they are.
    code, _, err = deliveries("replay", entries[0]["id"])
    assert code == 0
    first, second = err.splitlines()
    assert first == "of 1 to replay, 1 succeeded" and " audit: replay by " in second
    tasks = {one.task for one in servers.executions(bodies[0])} | {entries[0]["task_id"]}
    assert len(tasks) == 3


def test_a_replay_says_what_failed_and_what_was_not_taken(servers, gateway, deliveries):
    server = gateway()
    assert run(send(server, "/orders/7?seconds=no-number", "a bad one")).status == 502
    (bad,) = listed(deliveries, 1)
    code, out, _ = deliveries("replay", bad["id"])
    assert (code, out.splitlines()[1]) == (1, f"{bad['id']} FAILURE: ValueError")
    # Given a delivery for a queue that nobody works on,
    assert run(send(server, "/deleted", "nobody")).status == 504
    (later, _) = listed(deliveries, 2)
    code, out, _ = deliveries("replay", "--wait", "0", later["id"])
    assert (code, out.splitlines()[1]) == (1, f"{later['id']} no result in 0 s")
    # or for one that is there no more.
    servers.broker.ctl("delete_queue", "journal-deleted")
    code, out, _ = deliveries("replay", later["id"])
    problem = "not taken: The queue journal-deleted is missing."
    assert (code, out) == (1, f"{later['id']} {problem}\n")
    # As objects it says the same.
    code, out, _ = deliveries("replay", "--json", later["id"])
    assert json.loads(out) == {"id": later["id"], "task_id": "", "problem": problem}
    code, out, _ = deliveries("replay", "--json", bad["id"])
    taken, ended = map(json.loads, out.splitlines())
    assert ended == {**taken, "state": "FAILURE", "error": "ValueError"}


def test_only_what_is_verified_is_written_and_no_secret(gateway, deliveries):
    server = gateway()
    assert run(send(server, "/signed", "forged", "X-Hub-Signature-256: sha256=00")).status == 401
    assert run(send(server, "/nowhere", "lost")).status == 404
    proof = f"X-Hub-Signature-256: sha256={hmac.digest(b'sesame', b'pushed', 'sha256').hex()}"
    headers = ["X-GitHub-Event: push", "X-GitHub-Delivery: 7", "Authorization: Basic c2VzYW1l"]
    assert run(send(server, "/signed", "pushed", proof, *headers)).status == 200

    (entry,) = listed(deliveries, 1)
    assert (entry["source"], entry["event"]) == ("shop", "push")
    shown = json.loads(deliveries("show", entry["id"])[1])
    assert "x-github-event" in shown["headers"]
    assert shown["headers"].keys() & {"authorization", "x-hub-signature-256"} == set()


def test_a_delivery_that_lacks_a_value_is_written_whichever_task_needs_it(gateway, deliveries):
    server = gateway()
    for target in ("/needs?a=1", "/also-needs?a=1"):
        assert run(send(server, target, "{}")).status == 400

    entries = listed(deliveries, 2, "--status", "400")

    assert [entry["route"] for entry in entries] == ["/also-needs", "/needs"]
    assert {entry["error"] for entry in entries} == {"bad-request: json:/id is missing."}
    for entry in entries:
        shown = json.loads(deliveries("show", entry["id"])[1])
        assert (shown["query"], shown["body"], shown["task"]) == ({"a": "1"}, "{}", "faults.run")
    # What the route's own task is called with is not known, so it is not called.
    needs = entries[1]["id"]
    why = "cannot be replayed as it was: it had no message: bad-request: json:/id is missing."
    assert deliveries("replay", needs)[:2] == (1, f"{needs} {why}\n")


def test_what_a_sender_writes_does_nothing_to_a_terminal(gateway, deliveries):
    # Given an event and a body with escapes of terminals, a C1 control, and a bidi override,
    event = "\x9b2J"
    body = "\x9b2J \u202e \U000e0001 \x7f grüße"
    signature = hmac.new(b"sesame", body.encode(), "sha256").hexdigest()
    server = gateway()

    headers = f"X-Hub-Signature-256: sha256={signature}", f"X-GitHub-Event: {event}"
    assert run(send(server, "/signed", body, *headers)).status == 200

    first = listed(deliveries, 1, "--route", "/signed")[0]
    assert first["event"] == event
    for command in (["list"], ["list", "--json"], ["show", first["id"]]):
        code, out, _ = deliveries(*command)
        assert code == 0 and out.replace("\n", "").isprintable(), command
    assert json.loads(out)["body"] == body
    assert "grüße" in out


def test_whose_sender_has_left_is_written_as_gone(gateway, deliveries):
    server = gateway()
    assert run(send(server, "/orders/7?seconds=1", "left", patience=0.3)) is None
    (entry,) = listed(deliveries, 1)
    assert entry["status"] is None
    assert deliveries("list")[1].splitlines()[1].split()[2:4] == ["accepted", "gone"]


def test_bytes_stay_bytes(gateway, deliveries):
    assert run(ask(gateway().port, request(b"\xff\x00", "/later"))).status == 504
    (entry,) = listed(deliveries, 1)
    _, out, _ = deliveries("show", entry["id"])
    assert json.loads(out)["body"] == {"__type__": "base64", "__value__": "/wA="}


async def test_no_request_waits_for_the_journal(stack, start, servers):
    results = start(stack.redis)
    options = ("--result-backend", results.url)
    server = servers.gateway("pika", f"journal = 100\n{CONFIG}", *options)

    with results.frozen():
        # The first ones that are accepted wait a little, and those after it has failed do not.
        accepted = await gather(*(send(server, "/accept", f"a {n}") for n in range(2)))
        assert [answer.status for answer in accepted] == [202, 202]
        # Even the slowest machine does not take that long for each.
        took = []
        for number in range(20):
            began = time.monotonic()
            assert (await send(server, f"/orders/{number}", f"x {number}")).status == 200
            took.append(time.monotonic() - began)
        assert min(took) < pipeline.PATIENCE
        assert poll(lambda: "cannot be written to the journal" in server.output(), 30)
        assert (await send(server, "/accept", "b")).status == 202
    # When Redis is there again, it gets all of them.
    with results.client as client:
        assert poll(lambda: client.xlen("gateway:/::{journal}:deliveries") == 23, 30)
    assert metric(server, "gateway_journal_lost_total") == 0


def test_mistakes_are_told_in_one_line(deliveries, tmp_path, capsys):
    unknown = "00000000-0000-4000-8000-000000000000"
    code, _, err = deliveries("show", unknown)
    search = "`gateway deliveries list --text TEXT` finds a number or a name in a delivery"
    assert (code, err) == (1, f"gateway: no such delivery in the journal: {unknown}; {search}\n")
    dead = f"redis://:sesame@127.0.0.1:{free_port()}/0"
    for command in ("list", "watch"):
        assert main(["deliveries", command, "--result-backend", dead]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("gateway: redis://") and "GATEWAY_RESULT_BACKEND" in line
        assert "sesame" not in line
    file = tmp_path / "gateway.toml"
    file.write_text('strategy = "pika"\nresult_backend = ""\njournal = 5\n')
    assert main(["deliveries", "list", "--config", str(file)]) == 1
    assert "journal: the journal is kept in Redis" in capsys.readouterr().err

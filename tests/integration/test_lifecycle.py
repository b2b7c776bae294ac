"""What became of each delivery: its states in the journal, and replays of what a filter finds."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gateway.stack.server import poll
from tests.integration.deliveries import URLS, Servers, answered, gather, keyed, run, send
from tests.support.command import GATEWAY
from tests.support.config import route

CONFIG = (
    f'journal = 1000\nstate_prefix = "lifecycle"\n{URLS}'
    + route("/accept", answer="accept")
    + route("/wait")
    + route("/soon", answer="wait-then-accept", deadline=0.5)
    + route("/patient", answer="wait-then-accept")
    + route("/idle", queue="lifecycle-idle", answer="accept", expires=1)
    + keyed("/once")
    + route("/silent", answer="accept", journal=False)
)


@pytest.fixture
def options(servers: Servers, tmp_path) -> list[str]:
    """The options of commands, on a journal that is empty."""
    (tmp_path / "gateway.toml").write_text(CONFIG)
    servers.results.client.flushdb()
    return ["--config", f"{tmp_path}/gateway.toml"]


@pytest.fixture
def journal(servers: Servers, options, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `gateway deliveries`; return exit code, standard output and error."""
    return lambda command, *args: servers.deliveries(capsys, command, *options, *args)


@pytest.fixture
def command(servers: Servers, options) -> Callable[..., subprocess.Popen[str]]:
    """Start `gateway deliveries` as a process of its own."""

    def command(name: str, *args: str) -> subprocess.Popen[str]:
        argv = [*GATEWAY, "deliveries", name, *servers.urls, *options, *args]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True)

    return command


def states(journal: Callable, *args: str) -> dict[str, str]:
    """Return the states of deliveries by their body."""
    code, out, _ = journal("list", "--json", "--limit", "1000", *args)
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    # One that was dropped meanwhile is shown no more.
    shown = [json.loads(out) for one in found if (out := journal("show", one["id"])[1])]
    return {one["body"]: one["state"] for one in shown}


def until_states(journal: Callable, expected: dict[str, str]) -> None:
    found: dict[str, str] = {}

    def there() -> bool:
        found.clear()
        found.update(states(journal))
        return found == expected

    assert poll(there, 60), found


def entry(journal: Callable, body: str) -> dict:
    code, out, err = journal("list", "--json", "--text", body)
    assert (code, err) == (0, "")
    (found,) = [json.loads(line) for line in out.splitlines()]
    return found


@pytest.mark.parametrize("strategy", ["redis", "pika", "gevent"])
def test_each_delivery_is_found_in_its_state(servers: Servers, journal: Callable, strategy: str):
    gateway = servers.gateway(strategy, CONFIG)
    name = f"go-{strategy}"
    assert answered(gateway, "/accept", "well") == [202]
    assert answered(gateway, "/accept?seconds=no-number", "fails") == [202]
    assert answered(gateway, f"/accept?until={name}", "hangs") == [202]
    assert answered(gateway, "/accept?die=always", "kills") == [202]
    assert answered(gateway, "/wait", "waited") == [200]
    assert answered(gateway, "/wait?seconds=no-number", "failed") == [502]
    assert answered(gateway, "/wait?retries=2&seconds=no", "thrice") == [502]
    assert answered(gateway, "/accept?retries=1&seconds=no", "twice") == [202]
    assert answered(gateway, "/soon?seconds=1", "later") == [202]
    assert answered(gateway, "/silent", "not kept") == [202]

    expected = {
        "hangs": "running", "kills": "dead-lettered",
        **dict.fromkeys(("well", "waited", "later"), "succeeded"),
        **dict.fromkeys(("fails", "failed", "thrice", "twice"), "failed"),
    }  # fmt: skip
    until_states(journal, expected)

    failed = entry(journal, "fails")
    assert failed["error"] == "ValueError: could not convert string to float: 'no-number'"
    assert (failed["status"], failed["replays"]) == (202, 0) and failed["ended_at"]
    assert 0 < failed["published"] < failed["seconds"]
    attempts = {body: entry(journal, body)["attempts"] for body in ("fails", "thrice", "twice")}
    assert attempts == {"fails": 1, "thrice": 3, "twice": 2}
    assert "gateway.dead" in entry(journal, "kills")["error"]
    servers.release(name)
    until_states(journal, {**expected, "hangs": "succeeded"})
    ended = states(journal, "--state", "failed,dead-lettered").keys()
    assert ended == {"fails", "failed", "kills", "thrice", "twice"}


def test_who_has_the_result_in_time_has_succeeded_though_it_was_seen_to_run(gateway, journal):
    # The first look, a second after the beginning, finds it running.
    assert answered(gateway, "/patient?seconds=3", "long") == [200]
    until_states(journal, {"long": "succeeded"})
    assert entry(journal, "long")["status"] == 200


def test_what_no_worker_has_begun_is_accepted_and_then_expired(servers, gateway, journal):
    assert answered(gateway, "/idle", "late") == [202]
    until_states(journal, {"late": "accepted"})
    # The worker of the queue starts when the message has expired.
    assert poll(lambda: _age(journal, "late") > 2.5, 30)
    servers.start_worker(["lifecycle-idle"], 1)
    until_states(journal, {"late": "expired"})


def _age(journal: Callable, body: str) -> float:
    received = datetime.fromisoformat(entry(journal, body)["received_at"])
    return (datetime.now(UTC) - received).total_seconds()


def test_all_that_failed_are_replayed_by_one_command(servers, gateway, journal):
    bodies = [f"order-{n}" for n in range(30)]
    assert set(answered(gateway, "/accept?until=repaired&seconds=0", *bodies[:3])) == {202}
    assert set(answered(gateway, "/accept?seconds=broken", *bodies[3:])) == {202}
    expected = dict.fromkeys(bodies[:3], "running") | dict.fromkeys(bodies[3:], "failed")
    until_states(journal, expected)

    code, out, err = journal("replay", "--state", "failed", "--dry-run")
    assert (code, len(out.splitlines()) - 1, err) == (0, 27, "27 would be replayed\n")
    code, _, err = journal("replay", "--state", "failed")
    assert code == 1 and "27 deliveries would be replayed: say --yes" in err
    assert states(journal) == expected

    code, out, _ = journal("replay", "--state", "failed", "--yes", "--rate", "100")
    taken = [line.split()[0] for line in out.splitlines() if " taken: task " in line]
    assert (code, len(set(taken)), len(taken)) == (1, 27, 27)  # they fail again
    until_states(journal, expected)
    again = [entry(journal, body) for body in bodies[3:]]
    assert {one["replays"] for one in again} == {1}
    assert {one["error"].partition(":")[0] for one in again} == {"ValueError"}
    servers.release("repaired")
    until_states(journal, {**expected, **dict.fromkeys(bodies[:3], "succeeded")})


def test_a_task_is_told_which_replay_it_is(servers, gateway, journal):
    assert answered(gateway, "/wait", "told") == [200]
    until_states(journal, {"told": "succeeded"})
    found = entry(journal, "told")["id"]
    for _ in range(2):
        assert journal("replay", found)[0] == 0
    assert [each.replay for each in servers.executions("told")] == [0, 1, 2]


def test_an_interrupted_replay_is_told_and_not_repeated_unasked(servers, gateway, journal):
    assert answered(gateway, "/accept?seconds=no", "one") == [202]
    until_states(journal, {"one": "failed"})
    found = entry(journal, "one")
    # Given a replay that has ended between its publishing and its confirm,
    servers.results.client.hset(
        f"lifecycle:{{journal}}:delivery:{found['id']}", "replaying", "task-7"
    )

    code, out, _ = journal("replay", found["id"])
    assert (code, "an earlier replay was interrupted, and may run" in out) == (1, True)
    assert "task task-7" in out and states(journal) == {"one": "failed"}

    code, out, _ = journal("replay", "--again", found["id"])
    assert out.splitlines()[0] == f"{found['id']} taken: task task-7"
    until_states(journal, {"one": "failed"})
    replayed = entry(journal, "one")
    assert (replayed["replays"], replayed["replaying"], replayed["task_id"]) == (1, "", "task-7")


def test_of_the_tries_of_one_delivery_at_most_one_is_replayed(servers, gateway, journal):
    def tried(target: str, key: str, times: int = 1) -> list[int]:
        tries = (send(gateway, target, key, f"Idempotency-Key: {key}") for _ in range(times))
        return [each.status for each in run(gather(*tries))]

    # Given a try that has failed, before one that has not; two with one task, which has failed;
    assert tried("/once?seconds=no", "served") + tried("/once", "served") == [502, 200]
    assert tried("/once?seconds=no", "shared", 2) == [502, 502]
    # and two deliveries that nobody can take for tries of one.
    assert answered(gateway, "/wait?seconds=no", "alone", "alone") == [502, 502]

    def ids_of(body: str) -> list[str]:
        lines = journal("list", "--json", "--text", body)[1].splitlines()
        return [json.loads(line)["id"] for line in lines]

    ids = {body: ids_of(body) for body in ("served", "shared", "alone")}

    code, out, err = journal("replay", "--state", "failed", "--dry-run")
    assert code == 0
    for listed in (ids["shared"][0], *ids["alone"]):
        assert f" {listed} " in out
    assert err.splitlines() == [
        f"{ids['served'][1]} left out: {ids['served'][0]} is another try of the same delivery,"
        " succeeded; see --again",
        f"{ids['shared'][1]} left out: {ids['shared'][0]} is another try of the same delivery,"
        " failed; see --again",
        "3 would be replayed",
    ]

    code, out, err = journal("replay", ids["served"][1])
    assert (code, out) == (1, "") and "left out" in err
    code, out, _ = journal("replay", "--again", "--wait", "0", ids["served"][1])
    assert out.startswith(f"{ids['served'][1]} taken: task ")


def test_filters(gateway, journal):
    assert answered(gateway, "/accept", "first") == [202]
    assert answered(gateway, "/wait", "second") == [200]
    until_states(journal, {"first": "succeeded", "second": "succeeded"})
    for args, bodies in {
        ("--status", "2xx"): {"first", "second"},
        ("--status", "202"): {"first"},
        ("--route", "/acc*"): {"first"},
        ("--source", "shop"): set(),
        ("--event", "*"): {"first", "second"},
        ("--since", "1h"): {"first", "second"},
        ("--since", "2099-01-01"): set(),
        ("--until", "2020-01-01T00:00Z"): set(),
        ("--text", "secon"): {"second"},
        ("--state", "succeeded", "--text", "first"): {"first"},
    }.items():
        assert states(journal, *args).keys() == bodies, args


def test_mistakes_in_filters_are_told(journal, capsys):
    for args, said in {
        ("list", "--state", "lost"): "lost: is none of received, refused,",
        ("list", "--since", "yesterday"): "yesterday: is not a time; write 2026-01-31T12:00Z",
        ("list", "--since", "99999999999d"): "99999999999d: is not a time; write",
        ("list", "--status", "5x"): "5x: is not a status; write 502, 5xx or gone",
        ("watch", "--route", "price"): "price: is not a path; write /orders",
        ("replay", "--rate", "0"): "0: is not a number above 0",
        ("list", "--limit", "0"): "0: is not a number above 0",
        ("list", "--before", "now"): "now: is not what a page before has printed",
    }.items():
        with pytest.raises(SystemExit):
            journal(*args)
        assert said in capsys.readouterr().err
    code, _, err = journal("replay")
    assert code == 1 and "name the deliveries to replay, or say by options which" in err


def test_watch_shows_each_change(gateway, journal, command):
    with command("watch") as watch:
        try:
            assert "received" in watch.stdout.readline()  # the head: now nothing is missed
            assert answered(gateway, "/accept", "seen") == [202]
            seen = [watch.stdout.readline().split()[2] for _ in range(3)]
        finally:
            watch.send_signal(signal.SIGINT)
    assert watch.wait() == 130
    assert seen[-1] == "succeeded" and seen[0] in ("received", "accepted")


def test_watch_goes_on_when_redis_is_back(servers, gateway, command):
    with command("watch") as watch, servers.results.client as client:
        try:
            assert "received" in watch.stdout.readline()
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            assert watch.stderr.readline().endswith("; trying again\n")
            assert watch.stderr.readline() == "gateway: connected again\n"
            assert answered(gateway, "/wait", "after") == [200]
            assert " /wait" in watch.stdout.readline()
        finally:
            watch.send_signal(signal.SIGINT)


def test_pages_errors_and_texts_of_a_list(gateway, journal):
    assert answered(gateway, "/wait?seconds=no", "one", '{"Order": {"id": 7}}') == [502, 502]
    assert poll(lambda: len(states(journal)) == 2, 30)

    code, out, err = journal("list", "--limit", "1")
    head, first = out.splitlines()
    assert code == 0 and head.endswith("route, event, error")
    assert first.endswith("/wait task-failed: ValueError: could not convert string to float: 'no'")
    assert err.startswith("gateway: there are more: see --limit, or --before ")
    code, out, err = journal("list", "--before", err.split()[-1])
    assert (code, err) == (0, "") and len(out.splitlines()) == 2 and first not in out

    assert states(journal, "--text", "ORDER") == {'{"Order": {"id": 7}}': "failed"}
    assert set(states(journal, "--text", '[{"seconds":"no"}')) == {"one", '{"Order": {"id": 7}}'}
    assert len(states(journal, "--text", "valueError")) == 2
    named = "a route is named as in the configuration: /accept"
    for wanted, said in (("/wait/1", named), ("/*", "")):
        code, out, err = journal("list", "--route", wanted, "--text", "nowhere")
        assert (code, out) == (0, "") and err.startswith("gateway: no such deliveries")
        assert said in err and len(err.splitlines()) == 1


def test_a_replay_says_what_has_not_failed(gateway, journal):
    assert answered(gateway, "/wait", *(f"well {n}" for n in range(3))) == [200] * 3
    assert poll(lambda: len(states(journal)) == 3, 30)
    code, out, err = journal("replay", "--route", "/wait", "--dry-run")
    assert code == 0 and len(out.splitlines()) == 4
    assert err == "of 3 to replay, 3 succeeded\n3 would be replayed\n"


def test_a_replay_of_what_a_filter_finds_asks(servers, gateway, journal, monkeypatch):
    assert answered(gateway, "/accept?seconds=no", "asked") == [202]
    until_states(journal, {"asked": "failed"})
    assert journal("replay", "--state", "expired") == (0, "", "gateway: nothing to replay\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    code, out, err = journal("replay", "--state", "failed")
    assert (code, out, err) == (1, "", "gateway: nothing was replayed\n")
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    code, out, _ = journal("replay", "--state", "failed", "--wait", "0")
    assert code == 1 and " taken: task " in out

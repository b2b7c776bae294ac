"""How pages show bodies, times, numbers and what happened."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from gateway import errors
from gateway.admin.api.operations import OPERATIONS
from gateway.admin.api.schema import WholeDelivery
from gateway.admin.pages import widgets
from gateway.admin.pages.asked import FRESH, Look, Recent
from gateway.admin.pages.bodies import lines, shown
from gateway.admin.pages.compared import body, pairs
from gateway.admin.pages.counted import Counted
from gateway.admin.pages.deliveries import first_commands, typed
from gateway.admin.pages.delivery import commands, editable, edited, story, timeline
from gateway.admin.pages.overview import failures
from gateway.admin.pages.routes import stages
from gateway.admin.pages.sources import NEXT, others, verdict
from gateway.admin.pages.workers import limits, rows, start_command
from gateway.amqp.workers import CONSUMER_TIMEOUT, Running, Worker
from gateway.config.problems import explain
from gateway.config.redaction import HIDDEN
from gateway.config.settings import Config
from gateway.history.ring import LATER, STATUSES, WIDTH, Slot
from gateway.journal import entry as states
from gateway.journal.entry import Entry, Original
from gateway.metric_table import BUCKETS
from gateway.metrics import Metrics
from gateway.process.counters import Reader
from tests.support.each import for_each


def at(seconds: int) -> str:
    """Return a time so many seconds after `ENTRY` was received."""
    return f"2026-01-31T12:00:{seconds:02}.000+00:00"


MARKUP = "<b>&\"'"
ESCAPED = "&lt;b&gt;&amp;&quot;&#39;"
ENTRY = Entry(
    delivery={
        "id": "1", "route": "/orders/{shop}", "params": {"shop": "north"}, "query_string": "a=b",
        "received_at": "2026-01-31T12:00:00+00:00", "remote": "192.0.2.1", "source": "",
        "event": "",
    },
    task="shop.run", task_id="2", queue="orders", status=200, seconds=0.0112,
    call=json.dumps([[{}, {}, "x"], {}, {}]).encode(), state=states.SUCCEEDED, published=0.002,
)  # fmt: skip
CHATS = Config(
    sources={"chat": {"scheme": "wechat", "secrets": ["token"], "receive_id": "wx1"}}  # type: ignore[arg-type]
)
CHAT = replace(ENTRY, delivery={**ENTRY.delivery, "source": "chat"})


@pytest.mark.parametrize(
    ("body", "headers", "kind", "parts"),
    [
        ('{"a": {"b": "<i>"}}', {}, "JSON", ["<details", "&lt;i&gt;"]),
        (json.dumps({"a": ["x" * 80] * 2}), {}, "JSON", ["2 items", "1 key"]),
        ("[1, ", {}, "text, no valid JSON", ["[1, "]),
        (f'{{"card": "{HIDDEN}"}}', {}, "JSON", ['<span class="tag hidden">redacted']),
        ("<a><b>1</b><c/></a>", {}, "XML", ["&lt;a&gt;\n  &lt;b&gt;1&lt;/b&gt;\n  &lt;c/&gt;"]),
        ("a=1&b=%3Ci%3E", {"content-type": "application/x-www-form-urlencoded"}, "form",
         ["<dt>a</dt><dd>1</dd>", "&lt;i&gt;"]),
        (MARKUP + "x", {}, "XML", ["&lt;b&gt;"]),
        ("plain " + MARKUP, {}, "text", [ESCAPED]),
        ("", {}, "text", ["<pre></pre>"]),
        ({"__type__": "base64", "__value__": base64.b64encode(b"\xff\x00AB").decode()}, {}, "bytes",
         ["ff 00 41 42", "..AB"]),
        ({"__type__": "base64", "__value__": "x"}, {}, "bytes, not readable", ["<pre>x"]),
        ([1, {"a": None}], {}, "JSON", ["null"]),
    ],
)  # fmt: skip
def test_a_body_is_shown_as_what_it_is(body: Any, headers: dict[str, str], kind: str, parts):
    found = shown(body, headers)
    assert found.kind == kind and not found.cut
    for part in parts:
        assert part in found.markup


def test_halves_of_characters_that_a_sender_has_cut_are_shown_and_told():
    cut = r'{"a": "\ud83d", "\uDE00": [1]}'
    entry = replace(ENTRY, call=f'[["\\ud83d", {cut}], {{"b": {cut}}}, {{}}]'.encode())
    args, _ = entry.arguments()
    texts = [WholeDelivery.whole(entry).model_dump_json(), str(editable(entry))]
    texts += [shown(cut, {}).markup, shown(args[1], {}).markup, *lines(cut, {}, 9)]
    assert args[0] == "?" and all(text.encode() for text in texts)


def test_a_large_body_is_cut_and_a_deep_one_does_not_fold_for_ever():
    large = shown("x" * 300_000, {})
    assert large.cut and large.size == 300_000 and len(large.markup) < 250_000
    assert shown({"__type__": "x", "__value__": base64.b64encode(b"x" * 9_000).decode()}, {}).cut
    call = shown({"args": [[1] * 500_000], "kwargs": {}}, {})  # it would be as many elements
    assert call.cut and call.size > 1_000_000 and len(call.markup) < 250_000
    deep = shown("[" * 60 + '"' + "x" * 100 + '"' + "]" * 60, {})
    assert deep.markup.count("<details") < 30
    assert shown("[" * 100_000, {}).kind == "text, no valid JSON"


def test_what_is_shown_of_a_body_is_in_proportion_to_it():
    deep = "[" * 500 + "1," * 20_000 + "1" + "]" * 500
    for text in ("<a>" * 20_000, "<a>" * 70_000, "<" * 60_000, deep):
        found = shown(text, {})
        assert len(found.markup) < 40 * len(text), text[:9]
        # Where a level has an indent, a body of 1 MB could otherwise be one of 1 GB.
        some = lines(text, {}, 1_000)
        assert sum(map(len, some)) < 40 * len(text)
    assert len(some) > 1_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0112, "11.2 ms"), (1.44, "1.4 s"), (59.0, "59 s"), (372.0, "6 min 12 s"),
        (3600.0, "1 h"), (90_061.0, "1 d 1 h"), (-7.0, "0.0 ms"),
    ],
)  # fmt: skip
def test_lengths_of_time(seconds, text):
    assert widgets.lasting(seconds) == text


def test_numbers_sizes_and_times():
    assert [widgets.number(each) for each in (0, 0.42, 12.5, 423_104, 3_300_000)] == [
        "0", "0.4", "12.5", "423,104", "3.3 M",
    ]  # fmt: skip
    sizes = [widgets.size(each) for each in (12, 1_500, 612e6, 2.5e9, 5e12)]
    assert sizes == ["12 bytes", "1.5 KB", "612 MB", "2.5 GB", "5,000 GB"]
    assert widgets.ago("2026-01-31T12:00:00+00:00", 1769860872.0) == "1 min"
    assert widgets.ago(10.0, 10.5) == "now"
    assert widgets.when("") == ""
    told = widgets.when("2026-01-31T12:00:00.25+01:00", "full")
    assert 'datetime="2026-01-31T11:00:00.250Z"' in told
    assert "Sat 31 Jan 2026, 11:00:00<small>.250</small>" in told
    assert ">31 Jan 11:00:00<" in widgets.when("2026-01-31T12:00:00.25+01:00")


def test_every_state_has_a_look_and_what_is_written_is_escaped():
    for state in states.STATES:
        assert widgets.badge(state).startswith('<span class="state ')
    assert ESCAPED in widgets.badge("failed", MARKUP) and ESCAPED in widgets.token(MARKUP)
    assert ESCAPED in widgets.trouble("lost", MARKUP)
    assert ESCAPED in widgets.spark([1, 2], MARKUP)
    one = widgets.bars([("bad", [1, 0])], MARKUP)
    assert ESCAPED in one and one.count("<rect") == 1
    tall = float(one.partition('height="')[2].partition('"')[0])
    assert tall <= 20  # the scale has a floor: one failure is a fifth of it
    links = widgets.bars([("bad", [1, 2])], "x", links=lambda column: f"?{column}&'")
    assert 'href="?1&amp;&#39;" tabindex="-1"' in links and "aria-hidden" in links
    assert 'width="50.0%"' in widgets.meter(1, 2, "x")
    assert 'width="0.0%"' in widgets.meter(1, 0, "x")
    assert widgets.slots(1, 2, hangs=True).count("<rect") == 2 and widgets.slots(1, 99) == ""


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({}, ["<b>shop.run</b> succeeded.", "answered 200 after 11.2 ms, so it will not send"]),
        ({"attempts": 3}, ["succeeded at attempt 3."]),
        ({"state": states.FAILED, "error": f"KeyError: {MARKUP}", "status": 502, "attempts": 3},
         [f"in each of 3 attempts: <b>KeyError: {ESCAPED}</b>", "if it repeats what was not"]),
        ({"state": states.RECEIVED, "status": None}, ["no answer yet"]),
        ({"state": states.ACCEPTED, "status": 0}, ["had left after", "may send it again"]),
        ({"state": states.EXPIRED, "error": ""}, ["the reason is not known"]),
    ],
)  # fmt: skip
def test_what_happened_is_told_in_a_sentence(changed, parts):
    told = story(Config(), replace(ENTRY, **changed))
    for part in parts:
        assert part in told


def test_whether_a_known_sender_sends_again_is_told():
    told = story(CHATS, replace(CHAT, status=503, state=states.REFUSED))
    assert "The sender (chat) was answered 503" in told and "and tries 3 times" in told


def test_the_timeline_has_what_is_known():
    begun, worked = timeline(Config(), ENTRY)
    assert [(each.name, each.at) for each in begun] == [
        ("Received", 0.0), ("Published", 0.002), ("Answered", 0.0112),
    ] and not worked  # fmt: skip
    later = replace(
        ENTRY, ended_at="2026-01-31T12:01:12.000+00:00", error="x", attempts=2, status=0
    )
    begun, worked = timeline(Config(), later)
    assert begun[-1].name == "Sender left"
    assert [(each.detail, each.at) for each in worked] == [("x, 2 attempts", 72.0)]
    unknown = replace(ENTRY, published=None, status=None)
    assert [each.name for each in timeline(Config(), unknown)[0]] == ["Received"]


def test_the_timeline_has_each_run_and_the_late_answer():
    runs = [
        {"state": states.FAILED, "error": "x", "attempts": 2, "resent_at": at(20)},
        {"state": states.RUNNING, "begun_at": at(21), "resent_at": at(30), "by": "ann"},
    ]
    late = replace(
        ENTRY, state=states.ANSWERED_LATE, runs=runs, begun_at=at(31), ended_at=at(40),
        late_at=at(41), replays=2,
    )  # fmt: skip
    _, worked = timeline(Config(), late)
    assert [(each.name, each.detail, each.at) for each in worked] == [
        ("It has ended", "x, 2 attempts", None), ("Sent again", "as another task", 20.0),
        ("A worker has begun it", "when that was noticed", 21.0),
        ("Sent again", "by ann, as another task", 30.0),
        ("A worker has begun it", "when that was noticed", 31.0),
        ("Its end was noticed", "its result was stored", 40.0),
        ("Late answer", "the sender has taken its result", 41.0),
    ]  # fmt: skip
    assert [each.since for each in worked[3:]] == [21.0, 30.0, 31.0, 31.0]
    assert [each.state for each in worked[-2:]] == [states.SUCCEEDED, states.ANSWERED_LATE]


def test_the_timeline_says_who_was_verified_and_which_try_it_is():
    first = replace(CHAT, identity="0123456789abcdef")
    told = [(each.name, each.detail) for each in timeline(CHATS, first)[0]]
    assert told[1:3] == [("Verified", "chat, wechat"), ("Claimed", "the first try of 01234567…")]
    joined = timeline(CHATS, replace(first, published=None))[0]
    assert "an earlier try has published its task of" in joined[2].detail


def test_an_edited_copy_has_no_sender_who_waits():
    delivery = {**ENTRY.delivery, "edited_from": "0"}
    runs = [{"state": states.RECEIVED, "resent_at": at(0)}]
    copy = replace(
        ENTRY, delivery=delivery, runs=runs, published=None, status=None, ended_at=at(1), replays=1
    )
    told = story(Config(), copy)
    assert "so no sender waits" in told and "no answer yet" not in told
    begun, worked = timeline(Config(), copy)
    assert not begun and [each.name for each in worked] == ["Sent", "Its end was noticed"]


def test_a_body_or_the_arguments_are_edited():
    assert editable(ENTRY) == "x"
    assert json.loads(edited(ENTRY, "y")) == [[{}, {}, "y"], {}, {}]
    called = replace(ENTRY, call=b'[[1], {"a": 2}, {"chord": null}]')
    assert json.loads(editable(called)) == {"args": [1], "kwargs": {"a": 2}}
    new = edited(called, '{"args": [], "kwargs": {"a": 3}}')
    assert json.loads(new) == [[], {"a": 3}, {"chord": None}]
    for wrong in ("[", "[]", '{"args": []}', '{"args": 1, "kwargs": {}}'):
        with pytest.raises(ValueError):
            edited(called, wrong)
    # More than a worker could read: see `gateway.nesting`.
    for levels, fits in ((150, True), (250, False), (100_000, False)):
        deep = f'{{"args": [{"[" * levels}{"]" * levels}], "kwargs": {{}}}}'
        with nullcontext() if fits else pytest.raises(RecursionError):
            edited(called, deep)
    raw = [[{}, {}, {"__type__": "base64", "__value__": "/w=="}], {}, {}]
    assert editable(replace(ENTRY, call=json.dumps(raw).encode())) is None
    long = json.dumps([[{}, {}, "x" * 300_000], {}, {}]).encode()
    assert editable(replace(ENTRY, call=long)) is None


@pytest.mark.parametrize(
    ("left", "right", "rows"),
    [
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 3, "c": 4}',
         [("1", "{", "{"), ("2", '  "a": 1,', '  "a": 1,'), ("3", '  "b": 2', '  "b": 3,'),
          ("4", None, '  "c": 4'), ("4", "}", "}")]),
        ("<a><b>1</b></a>", "<a><b>2</b></a>",
         [("1", "<a>", "<a>"), ("2", "  <b>1</b>", "  <b>2</b>"), ("3", "</a>", "</a>")]),
        ("{1", "{1", []),
        ({"__type__": "base64", "__value__": "QQ=="}, {"__type__": "base64", "__value__": "Qg=="},
         [("1", f"000000  41{' ' * 45}  A", f"000000  42{' ' * 45}  B")]),
        ([1], "1", [("1", "[", "1"), ("2", "  1", None), ("3", "]", None)]),
    ],
)  # fmt: skip
def test_lines_of_two_bodies_that_differ(left, right, rows):
    assert body(lines(left, {}, 99), lines(right, {}, 99)) == rows


def test_what_is_the_same_is_left_out_where_two_are_compared():
    many = [str(number) for number in range(50)]
    found = body(many, [*many[:40], "x", *many[41:]])
    assert [row.name for row in found] == ["…", "38", "39", "40", "41", "42", "43", "44"]
    assert [row.name for row in found if row.differs] == ["41"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert lines("a=1&b=2", form, 9) == ["a=1", "b=2"] and lines("a&b\nc", {}, 9) == ["a&b", "c"]
    assert pairs({"a": "1", "b": ""}, {"c": "2", "b": ""}) == [("a", "1", ""), ("c", "", "2")]


def test_requests_are_copied_as_commands():
    config = Config(port=8000)
    made = commands(config, ENTRY, Original({}, {"host": "h", "x-a": "it's", "x-b": ""}, "x y"))
    assert made == {
        "curl": """curl -g -X POST -H 'x-a: it'"'"'s' -H 'x-b;' --data-binary 'x y' """
        "'http://127.0.0.1:8000/orders/north?a=b'"
    }
    raw = {"__type__": "base64", "__value__": "/w=="}
    piped = "echo /w== | base64 -d | "
    assert commands(config, ENTRY, Original({}, {}, raw))["curl"].startswith(f"{piped}curl ")
    signed = replace(ENTRY, delivery={**ENTRY.delivery, "source": "shop", "event": "paid"})
    told = commands(config, signed, Original({}, {}, "x"))["gateway send"]
    send = "gateway send --as shop --config gateway.toml --event paid --data "
    assert told.startswith(f"{send}x ")
    assert commands(config, signed, Original({}, {}, raw))["gateway send"].startswith(
        f"{piped}{send}- "
    )
    # Each of these would be read from a file, or from the terminal.
    for text in ("@/etc/passwd", "-", "-h"):
        for name, command in commands(config, signed, Original({}, {}, text)).items():
            piped = {"curl": "--data-binary @- ", "gateway send": "--data - "}[name]
            assert command.startswith("echo ") and piped in command
    params = {"shop": "a b?{x}[1-9]", "x": "no"}
    odd = replace(ENTRY, delivery={**ENTRY.delivery, "params": params, "query_string": "a=[1-9]"})
    assert commands(config, odd, Original({}, {}, "x"))["curl"].endswith(
        "--data-binary x 'http://127.0.0.1:8000/orders/a%20b%3F%7Bx%7D%5B1-9%5D?a=[1-9]'"
    )
    asked = replace(ENTRY, request={"method": "PUT", "path": "/x%20y", "truncated": False})
    assert "8000/x%20y?a=b" in commands(config, asked, Original({}, {}, "x"))["curl"]
    assert (
        commands(config, ENTRY, None)
        == commands(config, ENTRY, Original({}, {}, "x" * 70_000))
        == {}
    )
    assert commands(config, ENTRY, Original({}, {}, {"__type__": "base64", "__value__": "x"})) == {}
    assert commands(config, replace(ENTRY, redacted=["body"]), ({}, {}, "x")) == {}


@pytest.mark.parametrize(
    "text", ["`id`", "$HOME|id&", "it's", "@x", "a\x03\nid\n\x1b[201~", "\x9b\\'$(id)ü", "a\0b"]
)
def test_a_copied_command_has_what_a_sender_has_chosen_as_text(text: str, tmp_path: Path):
    name = text.replace("\0", "")  # a header cannot have it
    refused = replace(ENTRY, request={"method": name, "path": "/", "truncated": False})
    made = commands(Config(), refused, Original({}, {"x-a": name}, text))["curl"]
    assert made.replace("\n", "").isprintable()
    # Given a program that prints what it was called with, and what comes through a pipe,
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\ncat\n")
    curl.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    given = {"env": env, "capture_output": True, "check": True, "stdin": subprocess.DEVNULL}
    # when the command is run,
    *found, data, url, piped = subprocess.run(["bash", "-c", made], **given).stdout.split(b"\0", 8)
    # then nothing in it is more than text.
    line = f"x-a: {name}"
    assert [each.decode() for each in found] == ["-g", "-X", name, "-H", line, "--data-binary"]
    assert (piped if data == b"@-" else data).decode() == text
    assert url == b"http://127.0.0.1:8000/?a=b"


def test_what_is_typed_becomes_filters():
    assert typed("") == {}
    assert typed('route:/a* refund status:5xx event:"a b" 4711') == {
        "route": "/a*", "status": "5xx", "event": "a b", "text": "refund 4711",
    }  # fmt: skip
    # A word that ends like a filter's name is none, and what is searched for is all of it.
    assert typed("context:4711 http://x/?status:5") == {"text": "context:4711 http://x/?status:5"}
    assert typed('text:"a b" c') == {"text": "a b c"} and typed('text:""') == {}
    assert first_commands(Config(routes=[])) == []
    assert first_commands(Config()) == ["curl --data hello http://127.0.0.1:8000/"]
    odd = Config(host="::1", routes=[{"path": "/a;b"}])
    assert first_commands(odd) == ["curl --data hello 'http://[::1]:8000/a;b'"]


@for_each("model", {each.parameters for each in OPERATIONS})
def test_no_wrong_parameter_is_told_in_pydantics_words(model):
    for name in (*model.model_fields, "from", "routes", "notify", "str"):
        for value in ("", "\0", "many", "0", "1.5", "nan", "inf", "9" * 5_000):
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                for line in explain(error, model, field="parameter"):
                    words = re.search(r"Input|input|valid|Field|Value|should|setting|task", line)
                    named = line.startswith((f"{name}: ", "id: is needed", "until: is needed"))
                    assert named and not words, line


def test_the_command_of_a_worker_has_the_fair_queues_as_the_app_server_reads_them():
    fair = {"path": "/fair", "queue": "orders", "fair_by": "remote", "fair_queues": 4}
    config = Config(routes=[{"path": "/"}, fair])  # type: ignore[list-item]
    assert start_command(config) == (
        "GATEWAY_FAIR_QUEUES=orders:4 celery -A APP worker -n NAME@%h -Q celery,orders"
    )
    assert start_command(Config()) == "celery -A APP worker -n NAME@%h -Q celery"


def test_lost_and_hanging_workers_come_first():
    def worker(*began: float) -> Worker:
        running = [Running("1", "t", each, True) for each in began]
        return Worker(running=running, queues={"q"}, uptime=1_000)

    at = 10_000.0
    look = Look(
        at, workers={"a": worker(), "b": worker(at - 1, at - CONSUMER_TIMEOUT - 1), "c": worker(at)}
    )
    seen = {**{name: (at, each) for name, each in look.workers.items()}, "d": (at - 60, worker())}
    shown = rows(look, seen, {})
    assert [(row.name, row.state) for row in shown] == [
        ("d", "lost"), ("b", "hangs"), ("a", "online"), ("c", "online"),
    ]  # fmt: skip
    assert shown[1].longest == CONSUMER_TIMEOUT + 1 and shown[2].longest is None
    unasked = rows(Look(at, unasked="no answer"), seen, {})
    assert {row.state for row in unasked} == {"unknown"}


def test_a_task_hangs_when_its_callers_have_waited_for_ten_deadlines():
    routes = [
        {"path": "/a", "task": "quick", "deadline": 3},
        {"path": "/b", "task": "quick", "deadline": 5},
        {"path": "/c", "task": "both", "deadline": 3},
        {"path": "/d", "task": "both", "deadline": 3, "answer": "accept"},
        {"path": "/e", "task": "slow", "deadline": 600},
        {"path": "/f", "task": "quick", "deadline": 3, "also": [{"task": "further"}]},
        {"path": "/g", "task": "maybe", "deadline": 3, "prefer": True},
    ]
    found = limits(Config(routes=routes))  # type: ignore[arg-type] # as a file has it
    assert found == {
        "quick": 50, **dict.fromkeys(("both", "slow", "further", "maybe"), CONSUMER_TIMEOUT)
    }  # fmt: skip
    at = 10_000.0
    for task, seconds, state in (("quick", 49, "online"), ("quick", 51, "hangs"),
                                 ("other", CONSUMER_TIMEOUT + 1, "hangs"),
                                 ("both", 51, "online")):  # fmt: skip
        look = Look(at, workers={"a": Worker(running=[Running("1", task, at - seconds, True)])})
        (row,) = rows(look, {"a": (at, look.workers["a"])}, found)
        assert row.state == state
    # The one that hangs is shown, not the one that has run for the longest time.
    both = [Running("1", "other", at - 100, True), Running("2", "quick", at - 60, True)]
    look = Look(at, workers={"a": Worker(running=both)})
    (row,) = rows(look, {"a": (at, look.workers["a"])}, found)
    assert (row.state, row.longest, row.limit) == ("hangs", 60, 50)


@pytest.mark.parametrize(
    ("uptime", "queues", "state"),
    [(70, {"q", "r"}, "replaced"), (80, {"q"}, "lost"), (10, {"r"}, "lost"), (None, {"q"}, "lost")],
)
def test_a_worker_is_not_lost_where_another_has_begun_for_its_queues(uptime, queues, state):
    look = Look(1_000.0, workers={"new": Worker(queues=queues, uptime=uptime)})
    seen = {"new": (1_000.0, look.workers["new"]), "old": (940.0, Worker(queues={"q"}))}
    assert {row.name: row.state for row in rows(look, seen, {})}["old"] == state
    # It replaces one, and none of which it is not known what it has consumed.
    seen |= {"other": (940.0, Worker(queues={"q"})), "unknown": (940.0, Worker())}
    found = {row.name: row.state for row in rows(look, seen, {})}
    assert (found["other"], found["unknown"]) == ("lost", "lost")


async def test_what_was_asked_lately_is_told_again_but_no_error_and_not_what_has_to_be_fresh():
    answers: list[Any] = [ValueError("odd"), 1, 2, 3]

    async def ask() -> int:
        await asyncio.sleep(0)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    recent = Recent(ask)
    with pytest.raises(ValueError, match="odd"):
        await recent.get()
    assert [await recent.get(), await recent.get()] == [1, 1]
    assert await asyncio.gather(recent.get(fresh=True), recent.get()) == [2, 2]
    recent._begun -= FRESH + 1
    assert await asyncio.gather(recent.get(), recent.get()) == [3, 3]


def test_the_answers_since_the_start_are_counted_as_those_of_the_history_are():
    metrics = Metrics(routes=["/a"])
    for status, seconds in ((200, 0.02), (302, 0.02), (404, 0.02), (502, 0.3), (500, 99.0)):
        metrics.answered("/a", "POST", status, seconds)
    supervisor: Any = SimpleNamespace(totals=Reader(metrics.map).totals)
    its = Counted(supervisor).answers()["/a"]
    assert (its.received, its.refused, its.errors) == (5, 1, 2)
    assert 0.01 < its.quantile(0.5) <= 0.025 and its.quantile(1.0) == BUCKETS[-1]
    metrics.close()


def refused(error: str, path: str = "/x", second: int = 0) -> Entry:
    delivery = {**ENTRY.delivery, "route": "", "received_at": at(second)}
    request = {"method": "GET", "path": path}
    return replace(ENTRY, delivery=delivery, request=request, state=states.REFUSED, error=error)


def test_why_a_source_is_refused_is_told_by_what_was_before():
    last, start = refused("unverified: x", second=30), datetime.fromisoformat(at(20)).timestamp()
    assert verdict("missing", last, at(10), []) == ""
    assert verdict("mismatch", last, "", []).startswith("None that is kept was signed with this")
    assert "secret was changed at the sender" in verdict("mismatch", last, at(10), [(1.0, "one")])
    begun = [(start, "one 1.0"), (start + 60, "two 1.0")]
    told = verdict("mismatch", last, at(10), begun)
    assert told == "one 1.0 has started in between: compare its secrets with those of before."
    assert verdict("mismatch", last, at(40), begun) == "It is signed rightly now."


def test_the_parts_of_deliveries_are_those_of_their_requests():
    failed = replace(ENTRY, published=0.1, seconds=0.5, status=502)
    again = replace(failed, published=0.3, runs=[{"state": "failed", "resent_at": at(50)}])
    found = stages(Config(), [failed, again, refused("unverified: x")])
    assert [(each.name, each.many, round(each.median, 6), each.most) for each in found[:2]] == [
        ("Published", 2, 0.2, 0.3), ("Answered", 2, 0.3, 0.4),
    ]  # fmt: skip
    assert not any(each.name.startswith("Sent") for each in found)


def test_most_failures_are_found_by_how_they_were_answered():
    def slot(errors: int, later: int) -> Slot:
        counts = [0] * WIDTH
        counts[STATUSES.index("504")], counts[LATER] = errors, later
        return Slot(0, 10, counts)

    assert failures(slot(6, 0)) == failures(slot(2, 2)) == {"status": "5xx"}
    assert failures(slot(1, 2)) == {"state": "failed,dead-lettered,expired"}


def test_what_is_refused_for_something_else_is_told_with_the_next_step():
    some = [refused("not-found: no route", "/a"), refused("not-found: no route", "/b")]
    found = others([refused("too-many: x"), *some, some[1], refused("unverified: y"), ENTRY])
    assert [(row.newest.path, row.many) for row in found] == [("/b", 2), ("/x", 1), ("/a", 1)]
    assert found[0].todo == NEXT["not-found"]
    assert NEXT.keys() <= {each.type for each in vars(errors).values() if hasattr(each, "type")}


def test_a_state_of_a_newer_gateway_is_shown_by_its_name():
    newer = replace(ENTRY, state="held-back")
    assert "<span>held-back</span>" in widgets.badge(newer.state)
    assert "held-back" in story(Config(), newer)
    assert widgets.tone(newer.state) and widgets.trouble(newer.state, 3)
    assert timeline(Config(), newer)

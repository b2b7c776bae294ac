"""The archive: each delivery once, whatever is killed, and read as one with the journal."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
import tracemalloc
from base64 import b64encode
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.admin.api.schema import WholeDelivery
from gateway.admin.pages.view import View
from gateway.answer import Answer
from gateway.archive.archiver import Archiver
from gateway.archive.database import Database
from gateway.archive.erasing import SoughtText
from gateway.archive.reading import reading
from gateway.archive.tables import DELIVERIES, row
from gateway.claims.claim import dump, dump_end
from gateway.cli import main
from gateway.cli.commands.deliveries import delivery_line
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import ACCEPTED, FAILED, RECEIVED, SUCCEEDED, End, Entry
from gateway.journal.filter import Filter
from gateway.journal.store import NOT_ANSWERED, JournalStore, Refusal, Row
from gateway.journal.writing import SizeWatch
from gateway.stack.server import poll
from tests import archive_kills
from tests.integration.checking import write
from tests.support.parts import started
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually

KILLS = int(os.environ.get("KILLS", "9"))


@pytest.fixture(scope="module")
def postgresql(stack: Stack, start) -> Server:
    return start(stack.postgresql)


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, results: Server, tmp_path: Path) -> Config:
    """A configuration with an empty journal and an empty archive."""
    url = f"sqlite:///{tmp_path}/archive.db"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        url = new_database(server)
    return of(results.url, url)


def new_database(server: Server) -> str:
    import psycopg

    name = f"a{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server.url.rpartition('/')[0]}/{name}"


def of(store: str, archive: str, **settings: Any) -> Config:
    own = {"journal": 10_000, "strategy": "pika", "state_url": store, "archive_url": archive}
    own |= {"result_backend": None, "state_prefix": secrets.token_hex(4)}
    return Config(**{**own, **settings})


def about(delivery_id: str, event: str = "") -> str:
    received = datetime.now(UTC).isoformat()
    delivery = {"id": delivery_id, "route": "/a", "source": "s", "event": event, "store": False}
    delivery["received_at"] = received
    return json.dumps({"delivery": delivery, "task": "t", "queue": "celery", "options": {}})


def begun(delivery_id: str, text: str = "", event: str = "") -> Row:
    call = json.dumps([[{}, {}, text], {}, {}]).encode()
    return (delivery_id, RECEIVED, 0, "first", *NOT_ANSWERED, about(delivery_id, event), "", call)


def answer(delivery_id: str, state: str, status: int = 200, error: str = "") -> Row:
    return (delivery_id, state, 0, "first", str(status), "0.25", "0.01", error, "1", "", "", b"")


def archive(config: Config) -> int:
    return asyncio.run(Archiver(config).run_once())


def stored(config: Config) -> dict[str, Any]:
    """Return what is in the archive by id; each delivery has to be there once."""
    with Database(config).reading() as connection:
        rows = connection.execute(DELIVERIES.select()).all()
    found = {each.id: each for each in rows}
    assert len(found) == len(rows)
    return found


def written(config: Config, *rows: Row) -> None:
    async def write() -> None:
        async with JournalStore.opened(config) as store:
            await store.write(rows)

    asyncio.run(write())


def found(config: Config, limit: int = 1_000, **wanted: Any) -> list[Entry]:
    async def find() -> list[Entry]:
        entries: list[Entry] = []
        before = ""
        while True:
            page = 0
            async with (
                reading(config) as reader,
                aclosing(reader.find(Filter(**wanted), before)) as some,
            ):
                async for entry in some:
                    entries.append(entry)
                    before, page = entry.position, page + 1
                    if page == limit:
                        break
            if page < limit:
                return entries

    return asyncio.run(find())


def test_a_delivery_is_archived_as_it_changes(config):
    written(config, begun("a", "hello"), begun("b"))
    assert archive(config) == 2
    assert {each.state for each in stored(config).values()} == {RECEIVED}
    assert archive(config) == 0

    written(config, answer("a", ACCEPTED, 202), answer("b", SUCCEEDED))
    assert archive(config) == 2
    assert {key: (each.state, each.status) for key, each in stored(config).items()} == {
        "a": (ACCEPTED, 202), "b": (SUCCEEDED, 200),
    }  # fmt: skip

    async def go_on() -> None:
        async with JournalStore.opened(config) as store:
            await store.settle("a", "first", End(FAILED, "ValueError: \0\ud800 no", 3))
            await store.begin_replay("b", "second", "first")
            await store.end_replay("b", "second", taken=True)
            refusal = Refusal("c", about("c"), b"[[{}, {}, null], {}, {}]", 401, 0.1, "unverified")
            await store.refuse(refusal)

    asyncio.run(go_on())
    assert archive(config) == 3
    rows = stored(config)
    assert (rows["a"].state, rows["a"].attempts, rows["a"].error[:11]) == (FAILED, 3, "ValueError:")
    assert (rows["b"].state, rows["b"].replays, rows["b"].task_id) == ("replayed", 1, "second")
    assert rows["c"].state == "refused"


@pytest.mark.parametrize("waiting", [0, 1_000])
def test_journal_and_archive_are_read_as_one(config, monkeypatch, waiting):
    monkeypatch.setattr("gateway.archive.reading._WAITING", waiting)
    monkeypatch.setattr("gateway.archive.database._PLACES", 9)
    written(config, *(begun(f"{i:02}") for i in range(30)))
    archive(config)
    small = config.model_copy(update={"journal": 10})
    written(small, *(begun(f"{i:02}") for i in range(30, 40)), answer("35", FAILED, 502))
    ids = [f"{i:02}" for i in reversed(range(40))]
    for limit in (1_000, 7):
        entries = found(config, limit)
        assert [each.id for each in entries] == ids
    assert [each.id for each in found(config, state=frozenset([FAILED]))] == ["35"]

    async def one(delivery_id: str) -> Entry | None:
        async with reading(config) as reader:
            return await reader.get(delivery_id)

    old, new = asyncio.run(one("00")), asyncio.run(one("39"))
    assert old is not None and new is not None and asyncio.run(one("none")) is None
    assert old.arguments() == new.arguments() == ([{}, {}, ""], {})
    assert (old.delivery["route"], old.queue) == ("/a", "celery")


@pytest.mark.parametrize("waiting", [0, 1_000])
def test_what_the_archive_has_not_heard_of_yet_is_told_by_the_journal(config, monkeypatch, waiting):
    monkeypatch.setattr("gateway.archive.reading._WAITING", waiting)
    written(config, begun("a"), answer("a", FAILED, 502))
    archive(config)

    async def replay() -> None:
        async with JournalStore.opened(config) as store:
            await store.begin_replay("a", "second", "first")
            await store.end_replay("a", "second", taken=True)

    asyncio.run(replay())
    assert found(config, state=frozenset([FAILED])) == []
    assert [each.state for each in found(config)] == ["replayed"]
    for bound, number in (("since", 0), ("until", 1)):
        early = {bound: datetime(2020, 1, 1, tzinfo=UTC)}
        assert len(found(config, **early)) == 1 - number


def test_what_was_there_before_the_archive_is_copied(config):
    written(config.model_copy(update={"archive_url": None}), begun("a"), begun("b"))
    assert archive(config) == 2
    assert archive(config) == 0
    assert set(stored(config)) == {"a", "b"}


def test_what_the_database_has_lost_again_is_copied(config):
    written(config, begun("a"))
    archive(config)
    database = Database(config)
    before = [dict(each._mapping) for each in stored(config).values()]
    written(config, answer("a", FAILED))
    archive(config)
    with database.writing() as connection:  # as after a failover
        database.write(connection, before)
    assert archive(config) == 1
    assert stored(config)["a"].state == FAILED


def test_what_the_journal_cannot_have_any_more_is_not_looked_for(config, monkeypatch):
    written(config, begun("one"))
    archive(config)
    database = Database(config)
    assert database.versions(["one", "none"]) == {("one", RECEIVED, "first", "0")}
    later = time.time() + config.journal_age + 2 * 86_400
    monkeypatch.setattr("gateway.archive.database.time", lambda: later)
    assert database.versions(["one"]) == set()


@pytest.mark.parametrize("text", ["Order 4711", "order 4711", '"b":"x', "müller", "MÜLLER", "订单",
                                  "100%_", "\\path", 'say "hi"', "no such JSON"])  # fmt: skip
def test_texts_are_found_in_the_archive(config, monkeypatch, text):
    bodies = ['{"b":"x, Order 4711"}', "Herr Müller, 订单 7", '100%_ of \\path, say "hi"', "other"]
    written(config, *(begun(str(i), body) for i, body in enumerate(bodies)))
    written(config, answer("3", FAILED, 502, "bad: no such json"))
    expected = [each.id for each in found(config, text=text)]
    assert len(expected) == 1
    archive(config)
    lost(config)
    for newest in (2_000, 1):
        monkeypatch.setattr("gateway.archive.database._NEWEST", newest)
        assert [each.id for each in found(config, text=text)] == expected


#: Letters with one case, with several lower ones, with others' case, and what JSON or SQL escapes.
LETTERS = "aSskKiI1u%_\\\"'/ \n\0ßẞſ\u0130\u212aıςσΣäÄÅ\u212bÿŸǅǆꭰᎠµΜﬁ汉😀\u0307\ue000\x7f"
WORDS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=5)


def test_the_same_texts_are_found_and_erased_in_journal_and_archive(config):
    database = Database(config)
    database.migrate()

    @settings(max_examples=50, deadline=None)
    @given(st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 4), WORDS)
    def check(words: list[str], number: int, begin: int, other: str) -> None:
        forms = (str, json.dumps, lambda each: json.dumps(each, ensure_ascii=False), *ENCODED)
        texts = [form(f"x{each}y") for each in words for form in forms]
        entries = [text_somewhere(i, text) for i, text in enumerate(texts)]
        with database.writing() as connection:
            connection.execute(DELIVERIES.delete())
            database.write(connection, [row(each) for each in entries])
        word = words[number % len(words)]
        part = word[begin % len(word) :]
        for text in {part, part.upper(), part.lower(), part.casefold(), other}:
            wanted, is_about = Filter(text=text), SoughtText(text).is_about
            pages = database.pages(wanted, "")
            expected = [each.id for each in reversed(entries) if wanted.takes(each)]
            assert [each.id for page in pages for each in page] == expected
            erased = database.erase(text, is_about, [], dry_run=True)
            assert erased == sum(map(is_about, entries))

    check()


def by_bytes(text: str) -> str:
    return "".join(f"%{each:02x}" for each in text.encode())


#: How a URL, a form and JSON may have a text.
ENCODED = (
    by_bytes,
    quote_plus,
    lambda each: json.dumps(each).replace("/", "\\/"),
    lambda each: json.dumps({"e": quote(each)}),
    lambda each: "".join(f"\\u{ord(c):04X}" if ord(c) < 0x10000 else c for c in each),
    lambda each: json.dumps("".join(f"\\u{ord(c):04x}" for c in each if ord(c) < 0x10000)),
)


@pytest.mark.parametrize("text", ["erika@example.com", "Erika Ü", "+49 30 1", "1/2/90"])
def test_a_text_is_erased_however_it_is_encoded(config, text):
    whole = f"a{text}b"
    bodies = [form(whole) for form in (str, json.dumps, *ENCODED)]
    calls = [json.dumps([[{}, {}, body], {}, {}]).encode() for body in bodies]
    typed = {"__type__": "base64", "__value__": b64encode(b"\xff" + whole.encode()).decode()}
    calls.append(json.dumps([[{}, {}, typed], {}, {}]).encode())
    is_about = SoughtText(text).is_about

    def entry(number: int, call: bytes = b"", **about: str) -> Entry:
        known = {"id": f"d{number}", **about}
        return Entry(known, "t", "s", "q", None, 0.0, call, position=f"1-{number}")

    entries = [entry(number, call) for number, call in enumerate(calls)]
    entries += [entry(90, query_string=by_bytes(whole)), entry(91, query_string=quote_plus(whole))]
    other = entry(99, b'[["100%", "+"], {}, {}]', id="other")
    assert all(map(is_about, entries)) and not is_about(other)
    database = Database(config)
    database.migrate()
    with database.writing() as connection:
        database.write(connection, [row(each) for each in (*entries, other)])
    assert database.erase(text, is_about, [], dry_run=False) == len(entries)
    assert [each.id for page in database.pages(Filter(), "") for each in page] == ["other"]


def text_somewhere(number: int, text: str) -> Entry:
    """Return a delivery with a text in its body, its event, its parameters or its error."""
    places = [text if number % 4 == place else "" for place in range(4)]
    body, event, param, error = places
    delivery = {"id": f"d{number}", "event": event, "params": {"p": param}}
    call = json.dumps([[{}, {}, body], {}, {}]).encode()
    own = {"error": error.replace("\0", ""), "position": f"1-{number}"}
    return Entry(delivery, "t", "s", "q", None, 0.0, call, **own)


FIELDS = (
    "about", "call", "state", "task_id", "status", "seconds", "published", "error", "attempts",
    "replays", "replaying", "position", "ended_at", "begun_at", "late_at", "runs", "looks",
)  # fmt: skip
VALUES = (
    b"\xff", b"", b"\0", b"x", b"nan", b"-1", b"1e999", b"99999999999", b"null", b"[]", b"{}",
    b'"x"', b"[[], {}]", b"[[], [], {}]", b'[{"state": "x"}]', b"[" * 50_000, b"2026-01-31",
)  # fmt: skip
IN_ABOUT = ("task", "queue", "options", "identity", "request", "redacted", "runs", "begun_at")
IN_DELIVERY = ("id", "route", "source", "event", "received_at", "params", "remote")
WRONG = st.sampled_from([None, 1, "x", [], {}, [1], {"a": 1}, "\0"])
DAMAGES = st.one_of(
    st.tuples(st.sampled_from(FIELDS), st.none() | st.sampled_from(VALUES)),
    st.tuples(st.sampled_from(IN_ABOUT), WRONG).map(lambda it: ("about", in_about(*it))),
    st.tuples(st.sampled_from(IN_DELIVERY), WRONG).map(lambda it: ("about", in_delivery(*it))),
    st.sampled_from([("", b"a text"), ("", None)]),
)


def in_about(name: str, value: Any) -> bytes:
    return json.dumps({**json.loads(about("bad")), name: value}).encode()


def in_delivery(name: str, value: Any) -> bytes:
    return in_about("delivery", {**json.loads(about("bad"))["delivery"], name: value})


def test_what_is_damaged_in_the_journal_is_told_and_stops_nothing(config, caplog):
    database = Database(config)
    database.migrate()

    async def seen(own: Config, damage: tuple[str, bytes | None]) -> None:
        """Damage a field of a delivery, or its key; all others are read and archived."""
        async with JournalStore.opened(own) as store:
            await store.write([begun("good", "hello"), begun("bad", "hello")])
            failed = (*answer("bad", FAILED, 502, "E: hello")[:2], 1)
            await store.write([failed + answer("bad", FAILED, 502, "E: hello")[3:]])
            (name, value), key = damage, store._keys.of("bad")
            if name:
                change = ("HDEL", key, name) if value is None else ("HSET", key, name, value)
                await store._run(*change)
            else:
                await store._run("DEL", key)
                await store._run("SET" if value else "LPUSH", key, value or "a list")
            assert await Archiver(own)._copy(store, 0.0) == 2
            assert await store.unarchived(10) == []
            for wanted in (Filter(), Filter(text="hello"), Filter(route="/a", status="-")):
                async with aclosing(store.find(wanted)) as entries:
                    told = [each async for each in entries]
                ids = {each.id for each in told}
                assert "good" in ids or wanted.status
                # A newer gateway may have more states.
                assert damage != ("state", b"x") or "bad" in ids or wanted.status
                for each in told:
                    assert delivery_line(each) and WholeDelivery.whole(each)
            with suppress(GatewayError):  # of this one alone
                await store.get("bad")
            await store.due(10, 0, 1)
            failing = await store.failing("process", 60.0, 10)
            await store.count(failing or [], news=True)

    @settings(max_examples=60, deadline=None)
    @given(DAMAGES)
    @example(("state", b"x"))
    def check(damage: tuple[str, bytes | None]) -> None:
        caplog.clear()
        with database.writing() as connection:
            connection.execute(DELIVERIES.delete())
        own = config.model_copy(update={"state_prefix": secrets.token_hex(4)})
        try:
            asyncio.run(seen(own, damage))
        finally:
            lost(own)
        kept = stored(config)
        assert "good" in kept
        if "bad" not in kept or not kept["bad"].call:
            assert "damaged" in caplog.text or damage in (("call", None), ("call", b""))

    check()


@pytest.mark.parametrize("wanted", [Filter(), Filter(text="hello"), Filter(text="nobody")])
def test_few_calls_are_held_of_what_waits_to_be_archived(config, wanted):
    Database(config).migrate()
    for n in range(60):
        written(config, begun(f"d{n}", "hello" + "x" * 500_000))

    async def read() -> int:
        async with reading(config) as reader, aclosing(reader.find(wanted)) as found:
            return len([each async for each in found])

    tracemalloc.start()
    try:
        assert asyncio.run(read()) == (60 if wanted.text != "nobody" else 0)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_reader_s_query_that_takes_too_long_is_ended(config, monkeypatch):
    archive(config)
    monkeypatch.setattr("gateway.archive.database.READ", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0)"
    with pytest.raises(GatewayError, match="archive_url"), Database(config).reading() as connection:
        connection.exec_driver_sql(f"{endless} SELECT max(i) FROM n").all()


def lost(config: Config) -> None:
    """Let the journal be lost."""
    with redis.Redis.from_url(config.state) as client:
        client.flushdb()


def test_filters_find_the_same_in_the_archive(config):
    rows = [begun(f"{i}", event=event) for i, event in enumerate(["a", "a,b", "b.c", "%", ""])]
    written(config, *rows, answer("0", FAILED, 502), answer("1", SUCCEEDED, 200))
    written(config, answer("2", ACCEPTED, 0))
    filters: list[dict[str, Any]] = [
        {"event": "a"}, {"event": "b*"}, {"event": "%"}, {"source": "s"}, {"source": "x"},
        {"route": "/a*"}, {"route": "/b"}, {"status": "5xx"}, {"status": "2?0"},
        {"status": "gone"}, {"state": frozenset([FAILED, SUCCEEDED])}, {"text": "0"},
        {"since": datetime(2020, 1, 1, tzinfo=UTC)}, {"until": datetime(2020, 1, 1, tzinfo=UTC)},
    ]  # fmt: skip
    expected = [[each.id for each in found(config, **wanted)] for wanted in filters]
    archive(config)
    lost(config)
    assert [[each.id for each in found(config, **wanted)] for wanted in filters] == expected
    assert [len(each) for each in expected] == [2, 2, 1, 5, 0, 5, 0, 1, 1, 1, 2, 1, 5, 0]


def test_the_command_reads_an_archive_without_servers(config, tmp_path, capsys):
    written(config, begun("a", "hello"))
    archive(config)
    nobody = "redis://127.0.0.1:1/0"
    alone = f'strategy = "pika"\nresult_backend = "{nobody}"\narchive_url = "{config.archive}"\n'
    options = write(tmp_path, f"journal = 100\n{alone}")
    assert main(["deliveries", "list", "--json", *options]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["id"] == "a"
    assert f"gateway: {nobody}" in err
    assert main(["deliveries", "show", *options, "a"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["body"] == "hello"


def test_a_missing_archive_leaves_the_journal(results, capsys):
    for url in (
        "postgresql://u:secret@127.0.0.1:1/x?sslpassword=secret",
        "sqlite:////none/such/archive.db",
    ):
        config = of(results.url, url)
        written(config, begun("a"))
        assert [each.id for each in found(config)] == ["a"]

        async def problems(config: Config = config) -> list[str]:
            async with reading(config) as reader, aclosing(reader.find(Filter())) as some:
                assert [each.id async for each in some] == ["a"]
            return reader.problems

        (problem,) = asyncio.run(problems())
        assert "see archive_url" in problem and "secret" not in problem
        # Pages that show some of the newest ones say so, too.
        page: Any = SimpleNamespace(config=config)
        entries, told = asyncio.run(View.latest(page, Filter(), 9, 1.0))
        assert ([each.id for each in entries], told) == (["a"], problem)
        with pytest.raises(GatewayError, match="see archive_url"):
            archive(config)


def archived_row(which: str, ms: int, call: str) -> dict[str, Any]:
    texts = ("state", "task_id", "identity", "ended_at", "replaying", "error")
    texts += ("path", "source", "event", "failure")
    numbers = {"seq": 0, "attempts": 0, "replays": 0, "seconds": 0.0}
    numbers |= {"status": None, "published": None}
    own = {"id": which, "ms": ms, "call": call, "about": "{}"}
    return {**dict.fromkeys(texts, ""), **numbers, **own}


def test_what_is_old_or_too_much_is_removed(config):
    day = 86_400_000
    now = 1_700_000_000.0
    database = Database(config.model_copy(update={"archive_days": 30.0}))
    database.migrate()
    rows = [
        # Of such a call the index of texts has many parts.
        archived_row(f"{age}-{i}", int(now * 1000) - age * day + i, secrets.token_hex(1_000))
        for age in (0, 1, 2, 40)
        for i in range(2_000)
    ]
    with database.writing() as connection:
        database.write(connection, rows)
    database.prune(now)
    number, size = database.size()
    assert number == 6_000

    Database(config.model_copy(update={"archive_bytes": size // 2})).prune(now)
    left = {each.partition("-")[0] for each in stored(config)}
    assert "0" in left and "2" not in left
    number, left_bytes = database.size()
    assert 1_000 < number < 6_000 and left_bytes <= size // 2


def test_all_is_copied_where_few_deliveries_are_as_many_bytes_as_a_batch_has(config, monkeypatch):
    monkeypatch.setattr("gateway.archive.archiver.MOST_BYTES", 1_000)
    written(config, *(begun(str(i), "x" * 1_000) for i in range(5)))
    assert archive(config) == 5
    assert len(stored(config)) == 5


def test_what_cannot_be_removed_stops_no_copying(config, monkeypatch, caplog):
    def locked(*_: object) -> None:
        raise GatewayError("locked")

    monkeypatch.setattr(Database, "prune", locked)
    written(config, begun("a"))
    assert archive(config) == 1
    assert list(stored(config)) == ["a"]
    assert "stays in the archive: locked" in caplog.text


def test_what_is_old_makes_room_where_the_disk_is_full(results, tmp_path):
    url = f"sqlite:///{tmp_path}/archive.db"
    config = of(results.url, url).model_copy(update={"archive_days": 1.0})
    archiver = Archiver(config)
    database = archiver._database

    def small(connection: Any, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 200")

    sa.event.listen(database._engine, "connect", small)
    database.migrate()
    number = 0
    with pytest.raises(GatewayError, match="full"):
        while True:
            with database.writing() as connection:
                rows = [archived_row(f"{number}", number, secrets.token_hex(10_000))]
                database.write(connection, rows)
            number += 1
    assert number > 1

    written(config, begun("new", secrets.token_hex(10_000)))
    asyncio.run(archiver.run_once())
    assert list(stored(config)) == ["new"]


def test_lag_and_what_was_missed_are_measured(results, tmp_path, metrics):
    config = of(results.url, f"sqlite:///{tmp_path}/archive.db", journal=10)
    written(config, *(begun(str(i)) for i in range(10)))

    async def watch(waiting: int) -> None:
        async with JournalStore.opened(config) as store, started(SizeWatch(config, store, metrics)):
            await eventually(lambda: metrics.get("gateway_archive_waiting") == waiting)

    asyncio.run(watch(10))
    assert metrics.get("gateway_archive_lag_seconds") > 0
    assert metrics.get("gateway_archive_room_used") == 1.0
    archive(config)
    asyncio.run(watch(0))
    assert metrics.get("gateway_archive_room_used") == metrics.get("gateway_archive_missed") == 0
    written(config, *(begun(str(i)) for i in range(10, 30)))
    asyncio.run(watch(10))
    assert metrics.get("gateway_archive_missed") == 10


MARK = "Erika Müster-4711"


def everything(config: Config) -> str:
    """Return all that is in Redis and in the archive."""
    texts = [repr(row) for row in stored(config).values()]
    with redis.Redis.from_url(config.state) as client:
        for key in client.scan_iter():
            kind = client.type(key)
            read = {b"hash": client.hgetall, b"string": client.get, b"stream": client.xrange}
            texts.append(str(read.get(kind, lambda key: client.zrange(key, 0, -1))(key)))
    return "\n".join(texts)


def test_the_archive_is_read_where_no_redis_is_named(config):
    written(config, begun("a"), begun("b"))
    archive(config)
    alone = Config(strategy="pika", result_backend="", archive_url=config.archive)

    async def get() -> tuple[Entry | None, list[str]]:
        async with reading(alone) as reader:
            return await reader.get("a"), reader.problems

    entry, problems = asyncio.run(get())
    assert entry is not None and (entry.id, problems) == ("a", [])
    assert [each.id for each in found(alone)] == ["b", "a"]


@pytest.mark.parametrize("archived", ["all", "before", "none"])
def test_a_person_is_erased(config, archived, tmp_path, capsys):
    escaped = json.dumps(MARK)[1:-1]
    marked = (begun("in-a-body", f"paid by {MARK}"), begun("in-json", json.dumps({"who": MARK})),
              begun("in-an-event", event=MARK.upper()), begun("other", "another"))  # fmt: skip
    written(config, *marked, begun("in-an-error"))
    if archived == "before":
        archive(config)
    written(config, answer("in-an-error", FAILED, 502, f"no {MARK}"))
    if archived == "all":
        archive(config)
    else:
        Database(config).migrate()

    async def count() -> None:
        async with JournalStore.opened(config) as store:
            failing = await store.failing("process", 60.0, 10)
            assert failing is not None
            assert await store.count(failing, news=True) == 2

    written(config, begun("fails"), answer("fails", FAILED, 502, "4711"))
    asyncio.run(count())

    digest, task = b"d" * 16, uuid4()
    done = b"D" + bytes(7) + task.bytes + b"8" * 8
    kept = done + dump(Answer(200, "text/plain", f"of {MARK}".encode()))
    with redis.Redis.from_url(config.state) as client:
        client.set(config.prefix.encode() + b"c:" + digest, kept, px=60_000)
        client.set(config.prefix.encode() + b"c:other", done + b"other", px=60_000)
        client.set(f"{config.prefix}failed:{task}", dump_end(f"no {MARK}", None), px=60_000)
        values = {"version": 1, "record": json.dumps({"message": f"for {MARK}"})}
        client.hset(f"{config.prefix}{{late}}:task:{task}", mapping=values)
        client.zadd(f"{config.prefix}{{late}}:due", {str(task): 1.0})

    text = f'journal = 100\nstrategy = "pika"\nresult_backend = ""\nstate_url = "{config.state}"\n'
    text += f'archive_url = "{config.archive}"\nstate_prefix = "{config.state_prefix}"\n'
    own = ["deliveries", "erase", *write(tmp_path, text), "--text", MARK.lower()]
    assert main([*own, "--dry-run"]) == 0
    number = {"all": 4, "before": 4, "none": 0}[archived]
    counts = f"4 deliveries of the journal, {number} of the archive, 2 kept answers, 1 late answers"
    counts += ", 1 groups"
    assert capsys.readouterr().out == f"would be removed: {counts}\n"
    assert main(own) == 1  # nobody can be asked
    capsys.readouterr()

    assert main([*own, "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"removed: {counts}\nWhat may be left, and where:\n")
    assert "audit: erasure by " in err and MARK.lower() not in err.lower()
    archive(config)
    left = everything(config)
    forms = (MARK, "erika", escaped, MARK.encode().decode("latin-1"), repr(MARK.encode())[2:-1])
    assert [form for form in forms if form.casefold() in left.casefold()] == []
    assert {each.id for each in found(config)} == {"other", "fails"}
    with redis.Redis.from_url(config.state) as client:
        assert client.get(config.prefix.encode() + b"c:" + digest) == done
        assert client.get(config.prefix.encode() + b"c:other") == done + b"other"
        assert client.zcard(f"{config.prefix}{{late}}:due") == 0
        assert int(client.get(f"{config.prefix}{{journal}}:bytes")) < 500
    assert main([*own, "--yes"]) == 0
    assert capsys.readouterr().out.startswith("nothing has the text: 0 deliveries")


def test_what_is_erased_is_not_in_the_file_any_more(tmp_path):
    file = tmp_path / "archive.db"
    database = Database(Config(strategy="pika", result_backend="", archive_url=f"sqlite:///{file}"))

    def as_built_elsewhere(connection: Any, _: object) -> None:
        connection.execute("PRAGMA secure_delete = OFF")

    sa.event.listen(database._engine, "connect", as_built_elsewhere, insert=True)
    database.migrate()
    rows = [archived_row(f"{number}", number, f"by erika.{number}") for number in range(40)]
    with database.writing() as connection:
        database.write(connection, rows)
    assert b"erika.7" in file.read_bytes()
    assert database.erase("nobody", lambda _: False, [each["id"] for each in rows], False) == 40
    assert b"erika" not in file.read_bytes()


def test_the_archiver_ends_with_sigterm_also_as_the_first_process(results, tmp_path):
    file, env = tmp_path / "archive.db", {**os.environ, "GATEWAY_JOURNAL": "10"}
    argv = [sys.executable, "-m", "gateway", "archive", "--archive-url", f"sqlite:///{file}"]
    with subprocess.Popen([*argv, "--result-backend", results.url], env=env) as archiver:
        try:
            assert poll(file.exists, 60)
        finally:
            archiver.terminate()
    assert archiver.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_is_lost_or_twice_whatever_is_killed(database: str) -> None:
    """Archiver, Redis and PostgreSQL are killed while deliveries come.

    The gateway is not: it may have deliveries that a killed Redis has not taken yet.
    """
    options = f"--database {database} --victims archiver,redis,postgresql --kills {KILLS}"
    found = archive_kills.run([*options.split(), "--rate", "100", "--seconds", "15"])
    lost = ("twice", "in the journal, not archived", "confirmed, not archived",
            "accepted, not archived", "accepted, task has not run")  # fmt: skip
    assert [found[what] for what in lost] == [0] * len(lost)
    assert found["accepted, as archived"] == {SUCCEEDED: found["accepted"]}
    assert found["archived"] >= found["confirmed"] + found["accepted"] > 0

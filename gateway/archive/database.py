"""The database of the archive: PostgreSQL or SQLite, by SQLAlchemy, in whatever thread calls."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import ceil, inf
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gateway.archive.tables import DELIVERIES, LONGEST, METADATA, entry, like, storable
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import GONE, Entry, ms_of, order
from gateway.journal.filter import Filter, folded
from gateway.journal.store import Version

CONNECT = 3  # seconds for connecting
READ = 10.0  # seconds for one query of a reader
_STEPS = 10_000  # of SQLite, from one look at the time to the next
_BUSY = 10.0  # seconds that SQLite waits for another process
_LOCK = 7_203_981  # any number: PostgreSQL's lock of who writes
_DAY = 86_400_000  # ms
#: ms by which a delivery may have been in the journal before: Redis has lost it in between.
_BEFORE = 3_600_000
_TRIGRAM = 3
_PLACES = 1_000  # deliveries that are found by one query
#: Deliveries whose texts are read without their index: at most, at once, and for how many seconds.
_NEWEST, _FEW, _BUDGET = 10_000, 500, 0.2
_GLOBS = {"*": "%", "%": r"\%", "_": r"\_", "\\": r"\\"}
_PAGE = 500  # deliveries that are removed at once, where they are named
_ROWS, _CALLS = 200, 20  # deliveries that are read at once; with their calls
#: What may be left of the most bytes after the oldest deliveries were removed, where there are no
#: partitions: each time the index of texts is written anew.
_LEFT = 0.95
_INCREMENTAL = 2  # how SQLite gives pages back
#: Seconds for which PostgreSQL waits for a lock: for the archiver, which tries again, and for an
#: erasure; and for which a process may keep a transaction open without a statement.
_LOCKED, _ERASING, _SILENT = 10, 600, 60


class Database:
    """Opens the archive at `Config.archive_url`; errors are `GatewayError`."""

    def __init__(self, config: Config):
        self._config = config
        url = sa.make_url(config.archive)
        #: The URL without its password, and its options, as one of them may be a password.
        self.shown = url.set(query={}).render_as_string(hide_password=True)
        self._postgresql = url.get_backend_name() == "postgresql"
        if self._postgresql:
            url = url.set(drivername="postgresql+psycopg")
            options: dict[str, Any] = {"connect_timeout": CONNECT}
        else:
            options = {"timeout": _BUSY, "check_same_thread": False}
        self._engine = sa.create_engine(url, connect_args=options, poolclass=NullPool)
        if not self._postgresql:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)

    @contextmanager
    def writing(self, patience: int = _LOCKED) -> Iterator[Connection]:
        """Begin a transaction, as the only one that writes; it ends with the block.

        PostgreSQL waits for each lock for `patience` seconds.
        """
        with self._translated_errors(), self._engine.connect() as connection:
            if self._postgresql:
                connection.exec_driver_sql(
                    f"SET lock_timeout = '{patience}s'; "
                    f"SET idle_in_transaction_session_timeout = '{_SILENT}s'"
                )
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Connect for queries of `READ` seconds at most."""
        with self._translated_errors(), self._engine.connect() as connection:
            if self._postgresql:
                # Between two pages nothing may be locked. What is compiled for a query takes longer
                # than the query.
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                settings = f"SET statement_timeout = {int(READ * 1000)}; SET jit = off"
                connection.exec_driver_sql(settings)
            else:
                _limit(connection)
            yield connection

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as exc:
            why = str(getattr(exc, "orig", None) or exc).strip().partition("\n")[0]
            raise GatewayError(f"{self.shown}: {why}; see archive_url") from exc

    def migrate(self) -> None:
        """Make the table, if it is not there."""
        with self.writing() as connection:
            METADATA.create_all(connection)

    def write(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Write deliveries in the place of what is known of them."""
        if not rows:
            return
        tables: list[sa.TableClause] = [DELIVERIES]
        if self._postgresql:
            days = {(row["ms"] - before) // _DAY for row in rows for before in (0, _BEFORE)}
            tables = [self._table_of(connection, day) for day in sorted(days)]
        ids = [row["id"] for row in rows]
        for table in tables:
            connection.execute(sa.delete(table).where(table.c.id.in_(ids)))
        connection.execute(sa.insert(DELIVERIES), list(rows))

    def _table_of(self, connection: Connection, day: int) -> sa.TableClause:
        """Return the partition of a day, made if it is not there, to remove rows by their ids.

        Where the statistics are old, or lost with a crash, PostgreSQL would also read all rows of
        the times that a condition names, or all of the partition.
        """
        name = _partition(day)
        connection.exec_driver_sql(
            f"SET LOCAL enable_seqscan = off; CREATE TABLE IF NOT EXISTS {name} PARTITION OF "
            f"deliveries FOR VALUES FROM ({day * _DAY}) TO ({(day + 1) * _DAY})"
        )
        return sa.table(name, sa.column("id"))

    def get(self, delivery_id: str) -> Entry | None:
        """Return the delivery with this id; None: there is none."""
        with self.reading() as connection:
            wanted = sa.select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)
            found = connection.execute(wanted).first()
        return None if found is None else entry(found, call=True)

    def pages(self, wanted: Filter, before: str) -> Generator[list[Entry], None, None]:
        """Yield those that `wanted` takes, the newest first, with their calls if it has a text."""
        columns, calls = DELIVERIES.c, bool(wanted.text)
        needed = [each for each in columns if calls or each.name != "call"]
        number = _CALLS if calls else _ROWS
        with self.reading() as connection:
            for places in self.places(connection, wanted, before):
                for i in range(0, len(places), number):
                    part = places[i : i + number]
                    near = columns.ms.between(part[-1].ms, part[0].ms)
                    named = columns.id.in_([each.id for each in part])
                    query = sa.select(*needed).where(near, named)
                    query = query.order_by(columns.ms.desc(), columns.seq.desc())
                    entries = [entry(each, calls) for each in connection.execute(query)]
                    yield [each for each in entries if wanted.takes(each)]

    def places(
        self, connection: Connection, wanted: Filter, before: str
    ) -> Iterator[Sequence[sa.Row[Any]]]:
        """Yield ms, seq and id of deliveries that `wanted` may take, the newest first.

        Without a text, the index of filters has all that is read. A text is looked for in the
        newest ones as they come, and in older ones by its index, each time in four times the time
        before: of a text that is frequent the index yields too many at once.
        """
        columns, times = DELIVERIES.c, tuple(_within(wanted))
        newest_first = (columns.ms.desc(), columns.seq.desc())
        query = sa.select(columns.ms, columns.seq, columns.id).where(*times).limit(_PLACES)
        matching = query.where(*self._conditions(wanted))
        if not wanted.text:
            yield from _older(connection, matching.order_by(*newest_first), before)
            return
        ends = query.order_by(*newest_first)
        newest = connection.execute(ends.where(*_before(before)).limit(1)).scalar()
        if newest is None:
            return
        read = matching.where(self._is_about(wanted.text, indexed=False)).order_by(*newest_first)
        since, end = newest, monotonic() + _BUDGET
        for number in range(0, _NEWEST, _FEW):
            if number and monotonic() > end:
                break
            end_of_part = ends.where(*_before(before)).offset(_FEW - 1).limit(1)
            last = connection.execute(end_of_part).scalar()
            if last is None:
                yield from _older(connection, read, before)
                return
            yield from _older(connection, read.where(columns.ms >= last), before)
            since, before = last, f"{last}-0"
        # Not in the order of an index, which would be that of another index than the text's.
        found = matching.where(self._is_about(wanted.text))
        found = found.order_by((columns.ms + 0).desc(), columns.seq.desc())
        oldest = connection.execute(sa.select(sa.func.min(columns.ms)).where(*times)).scalar_one()
        span = newest - since + 1
        while since > oldest:
            before, span = f"{since}-0", 4 * span
            since -= span
            yield from _older(connection, found.where(columns.ms >= since), before)

    def _conditions(self, wanted: Filter) -> Iterator[sa.ColumnElement[bool]]:
        """Yield what a filter demands of the columns, but for the times and the text."""
        columns = DELIVERIES.c
        if wanted.state:
            yield columns.state.in_(sorted(wanted.state))
        if wanted.group:
            yield columns.failure == wanted.group
        if wanted.status == "gone":
            yield columns.status == GONE
        elif wanted.status:
            least, most = (int(re.sub("[x?]", digit, wanted.status)) for digit in "09")
            yield columns.status.between(least, most)
        if wanted.route:
            yield _fits(columns.path, wanted.route)
        if wanted.source:
            yield _fits(columns.source, wanted.source)
        if wanted.event:
            batch = columns.event.like("%,%")
            one_of_them = _fits("," + columns.event + ",", f"*,{wanted.event},*")
            yield sa.or_(_fits(columns.event, wanted.event), sa.and_(batch, one_of_them))

    def _is_about(self, text: str, *, indexed: bool = True) -> sa.ColumnElement[bool]:
        forms = {like(text), like(json.dumps(text, ensure_ascii=False)[1:-1])}
        return sa.or_(*_has_id(text), *(self.has_text(form, indexed) for form in sorted(forms)))

    def erase(
        self, text: str, is_about: Callable[[Entry], bool], ids: Sequence[str], dry_run: bool
    ) -> int:
        """Remove the deliveries with these `ids`, and those of which `is_about` is true.

        The latter have `text`, maybe encoded. Return how many all these are.
        """
        columns = DELIVERIES.c
        # What may have any letter encoded, in a URL, a form, JSON or base64.
        encoded = [
            column.contains(sign, autoescape=True)
            for column in (columns.call, columns.about, columns.error)
            for sign in ("%", "\\u00", "__type__")
        ]
        patterns = {like(text, escaped=True, numbers=each) for each in (False, True)}
        wanted = sa.or_(
            *_has_id(text),
            *encoded,
            *(self.has_text(each) for each in sorted(patterns)),
            *(sa.func.lower(columns.about).like(each.lower()) for each in sorted(patterns)),
        )
        with self.writing(_ERASING) as connection:
            query = sa.select(DELIVERIES).where(wanted).execution_options(yield_per=_CALLS)
            found = [
                (each.ms, each.seq, each.id)
                for each in connection.execute(query)
                if is_about(entry(each, call=True))
            ]
            others = sorted({*ids} - {found_id for _, _, found_id in found})
            for i in range(0, len(others), _PAGE):
                part = columns.id.in_(others[i : i + _PAGE])
                named = sa.select(columns.ms, columns.seq, columns.id).where(part)
                found += [(ms, seq, its) for ms, seq, its in connection.execute(named)]
            place = sa.tuple_(columns.ms, columns.seq, columns.id)
            for i in range(0, 0 if dry_run else len(found), _PAGE):
                part = place.in_(found[i : i + _PAGE])
                connection.execute(sa.delete(DELIVERIES).where(part))
            if found and not (self._postgresql or dry_run):
                self._tidy(connection)
        return len(found)

    def _tidy(self, connection: Connection) -> None:
        """Write SQLite's index of texts anew: it keeps what it has of removed ones until then."""
        connection.exec_driver_sql(
            "INSERT INTO deliveries_text(deliveries_text) VALUES ('optimize')"
        )

    def prune(self, now: float) -> None:
        """Remove what is too old (`now`: seconds since the epoch), and what is too much."""
        oldest = int((now - self._config.archive_days * 86_400) * 1000)
        with self.writing() as connection:
            if self._postgresql:
                self._prune_partitions(connection, oldest)
            else:
                self._prune_rows(connection, oldest)
        if not self._postgresql:
            with self._translated_errors(), self._engine.connect() as connection:
                # As a script, as each step of it gives one page back only.
                plain: Any = connection.connection.driver_connection
                plain.executescript("PRAGMA incremental_vacuum")

    def _prune_partitions(self, connection: Connection, oldest: int) -> None:
        found = connection.exec_driver_sql(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE oid IN (SELECT "
            "inhrelid FROM pg_inherits WHERE inhparent = 'deliveries'::regclass) ORDER BY relname"
        ).all()
        total, most = sum(size for _, size in found), self._config.archive_bytes
        for name, size in found:
            # The newest day is never too much: what comes would have no place.
            much = most and total > most and name != found[-1][0]
            if name < _partition(oldest // _DAY) or much:
                connection.exec_driver_sql(f"DROP TABLE {name}")
                total -= size

    def _prune_rows(self, connection: Connection, oldest: int) -> None:
        ms = DELIVERIES.c.ms
        connection.execute(sa.delete(DELIVERIES).where(ms < oldest))
        most = self._config.archive_bytes

        def pragma(name: str) -> int:
            return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())

        def used() -> int:
            return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")

        while most and (size := used()) > most:
            number = connection.execute(sa.select(sa.func.count()).select_from(DELIVERIES)).scalar()
            much = ceil((number or 0) * (1 - _LEFT * most / size))
            first = sa.select(ms).order_by(ms).limit(1).offset(much)
            until = connection.execute(first).scalar()
            if until is None:
                break
            connection.execute(sa.delete(DELIVERIES).where(ms <= until))
            self._tidy(connection)

    def versions(self, ids: Sequence[str]) -> set[Version]:
        """Return what is there of these `ids`, of the days that the journal may have."""
        columns = DELIVERIES.c
        # Partitions are left out by it: many more days are kept here.
        oldest = int((time() - self._config.journal_age) * 1000) - _DAY
        wanted = sa.select(columns.id, columns.state, columns.task_id, columns.replays).where(
            columns.id.in_(ids) & (columns.ms >= oldest)
        )
        with self.reading() as connection:
            return {(i, state, task, str(n)) for i, state, task, n in connection.execute(wanted)}

    def size(self) -> tuple[int, int]:
        """Return how many deliveries there are, and the bytes that they take with their indexes."""
        sizes = (
            "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits"
            " WHERE inhparent = 'deliveries'::regclass"
            if self._postgresql
            else "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        )
        with self.reading() as connection:
            number = connection.execute(sa.select(sa.func.count()).select_from(DELIVERIES))
            return number.scalar_one(), int(connection.exec_driver_sql(sizes).scalar() or 0)

    def has_text(self, pattern: str, indexed: bool = True) -> sa.ColumnElement[bool]:
        """Return the condition that the error or the call is like `pattern`, in any case.

        Not `indexed`: the index of texts is not used.
        """
        if self._postgresql:
            # As the index has it, or as it does not.
            end = "" if indexed else " || ''"
            texts = sa.literal_column(f"lower(error || ' ' || call){end}", sa.Text)
            return texts.like(sa.func.lower(pattern))
        # Of shorter pieces SQLite's index has nothing.
        runs = [run for run in re.split("[%_]+", pattern) if len(run) >= _TRIGRAM]
        if not runs or not indexed:
            return sa.or_(*(DELIVERIES.c[name].like(pattern) for name in ("error", "call")))
        pattern = f"%{'%'.join(runs)}%"
        index = sa.table("deliveries_text", *map(sa.column, ("rowid", "error", "call")))
        rowid: sa.ColumnClause[int] = sa.literal_column("deliveries.rowid")
        return sa.or_(
            *(
                rowid.in_(sa.select(index.c.rowid).where(index.c[name].like(pattern)))
                for name in ("error", "call")
            )
        )


def _has_id(text: str) -> Iterator[sa.ColumnElement[bool]]:
    for column in (DELIVERIES.c.id, DELIVERIES.c.task_id):
        yield column.in_([storable(text), storable(folded(text))])


def _within(wanted: Filter) -> Iterator[sa.ColumnElement[bool]]:
    """Yield what a filter demands of the time."""
    if wanted.until is not None:
        yield DELIVERIES.c.ms <= ms_of(wanted.until)
    if wanted.since is not None:
        yield DELIVERIES.c.ms >= ms_of(wanted.since)


def _older(
    connection: Connection, query: sa.Select[Any], before: str
) -> Iterator[Sequence[sa.Row[Any]]]:
    """Yield what a query finds after a position, in parts."""
    while True:
        found = connection.execute(query.where(*_before(before))).all()
        yield found
        if len(found) < _PLACES:
            return
        before = f"{found[-1].ms}-{found[-1].seq}"


def _before(at: str) -> tuple[sa.ColumnElement[bool], ...]:
    if not at:
        return ()
    columns, (ms, seq) = DELIVERIES.c, order(at)
    # Partitions are left out by the first one.
    return columns.ms <= ms, sa.tuple_(columns.ms, columns.seq) < sa.tuple_(
        sa.literal(ms), sa.literal(seq)
    )


def _fits(column: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column, which is cut off, fits a pattern with `*`."""
    if "*" not in pattern:
        return column == pattern[:LONGEST]
    like = "".join(_GLOBS.get(each, each) for each in pattern)
    return column.like(like, escape="\\")


def _partition(day: int) -> str:
    """Return the name of a day's partition; the names have the order of the days."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return f"deliveries_{date:%Y%m%d}"


def _limit(connection: Connection) -> None:
    """End each query of SQLite after `READ` seconds."""
    driver: Any = connection.connection.driver_connection
    until = inf

    def begin(*_: object) -> None:
        nonlocal until
        until = monotonic() + READ

    sa.event.listen(connection, "before_cursor_execute", begin)
    driver.set_progress_handler(lambda: monotonic() > until, _STEPS)


def _prepare_sqlite(connection: Any, _: object) -> None:
    # Transactions begin where `Database.writing` says so.
    connection.isolation_level = None
    # To set it again takes the lock of who writes.
    if connection.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
        connection.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
    # `secure_delete`: not every SQLite overwrites what was erased.
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")

"""The database of the archive: PostgreSQL or SQLite, by SQLAlchemy, in whatever thread calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as Alembic
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gateway.archive.tables import DELIVERIES, entry, like
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import Entry

CONNECT = 3  # seconds for connecting
READ = 10.0  # seconds for one query of a reader
_BUSY = 10.0  # seconds that SQLite waits for another process
_LOCK = 7_203_981  # any number: PostgreSQL's lock of who writes
_DAY = 86_400_000  # ms
#: ms by which a delivery may have been in the journal before: Redis has lost it in between.
_BEFORE = 3_600_000
_TRIGRAM = 3
_PAGE = 500  # deliveries that are removed at once, where they are named
_REMOVED = 5_000  # deliveries that are removed at once, where there are no partitions


class Database:
    """Opens the archive at `Config.archive_url`; errors are `GatewayError`."""

    def __init__(self, config: Config):
        self._config = config
        url = sa.make_url(config.archive)
        #: The URL without its password.
        self.shown = url.render_as_string(hide_password=True)
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
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction, as the only one that writes; it ends with the block."""
        with self._told(), self._engine.connect() as connection:
            if self._postgresql:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Connect for queries of `READ` seconds at most."""
        with self._told(), self._engine.connect() as connection:
            if self._postgresql:
                connection.exec_driver_sql(f"SET statement_timeout = {int(READ * 1000)}")
            yield connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as exc:
            why = str(getattr(exc, "orig", None) or exc).strip().partition("\n")[0]
            raise GatewayError(f"{self.shown}: {why}; see archive_url") from exc

    def migrate(self) -> None:
        """Make the tables, or bring them up to date."""
        settings = Alembic()
        settings.set_main_option("script_location", "gateway.archive:migrations")
        with self.writing() as connection:
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")

    def write(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Write deliveries in the place of what is known of them."""
        if not rows:
            return
        times = [row["ms"] for row in rows]
        if self._postgresql:
            for day in sorted({ms // _DAY for ms in times}):
                connection.exec_driver_sql(
                    f"CREATE TABLE IF NOT EXISTS {_partition(day)} PARTITION OF deliveries "
                    f"FOR VALUES FROM ({day * _DAY}) TO ({(day + 1) * _DAY})"
                )
        ms, ids = DELIVERIES.c.ms, [row["id"] for row in rows]
        near = sa.and_(ms >= min(times) - _BEFORE, ms <= max(times))
        connection.execute(sa.delete(DELIVERIES).where(near, DELIVERIES.c.id.in_(ids)))
        connection.execute(sa.insert(DELIVERIES), list(rows))

    def erase(
        self,
        forms: Sequence[str],
        is_about: Callable[[Entry], bool],
        ids: Sequence[str],
        dry_run: bool,
    ) -> int:
        """Remove the deliveries with these `ids`, and those of which `is_about` is true.

        The latter have one of the texts `forms`. Return how many all these are.
        """
        columns = DELIVERIES.c
        patterns = {like(text) for form in forms for text in (form, json.dumps(form)[1:-1])}
        wanted = sa.or_(
            columns.id.in_(forms),
            columns.task_id.in_(forms),
            *(self.has_text(each) for each in sorted(patterns)),
            *(sa.func.lower(columns.about).like(each.lower()) for each in sorted(patterns)),
        )
        with self.writing() as connection:
            query = sa.select(DELIVERIES).where(wanted).execution_options(yield_per=_PAGE)
            found = [
                (each.ms, each.seq, each.id)
                for each in connection.execute(query)
                if is_about(entry(each, call=True))
            ]
            others = sorted({*ids} - {found_id for _, _, found_id in found})
            for i in range(0, len(others), _PAGE):
                some = columns.id.in_(others[i : i + _PAGE])
                named = sa.select(columns.ms, columns.seq, columns.id).where(some)
                found += [(ms, seq, its) for ms, seq, its in connection.execute(named)]
            place = sa.tuple_(columns.ms, columns.seq, columns.id)
            for i in range(0, 0 if dry_run else len(found), _PAGE):
                some = place.in_(found[i : i + _PAGE])
                connection.execute(sa.delete(DELIVERIES).where(some))
        return len(found)

    def prune(self, now: float) -> None:
        """Remove what is too old (`now`: seconds since the epoch), and what is too much."""
        oldest = int((now - self._config.archive_days * 86_400) * 1000)
        with self.writing() as connection:
            if self._postgresql:
                self._prune_partitions(connection, oldest)
            else:
                self._prune_rows(connection, oldest)

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

        size = pragma("page_size")
        while most and (pragma("page_count") - pragma("freelist_count")) * size > most:
            first = sa.select(ms).order_by(ms).limit(1).offset(_REMOVED)
            until = connection.execute(first).scalar()
            if until is None:
                break
            connection.execute(sa.delete(DELIVERIES).where(ms < until))
        connection.exec_driver_sql("PRAGMA incremental_vacuum")

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

    def has_text(self, pattern: str) -> sa.ColumnElement[bool]:
        """Return the condition that the error or the call is like `pattern`, in any case."""
        if self._postgresql:
            # As the index has it.
            texts = sa.literal_column("lower(error || ' ' || call)", sa.Text)
            return texts.like(sa.func.lower(pattern))
        # Of shorter pieces SQLite's index has nothing.
        runs = [run for run in re.split("[%_]+", pattern) if len(run) >= _TRIGRAM]
        if not runs:
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


def _partition(day: int) -> str:
    """Return the name of a day's partition; the names have the order of the days."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return f"deliveries_{date:%Y%m%d}"


def _prepare_sqlite(connection: Any, _: object) -> None:
    # Transactions begin where `Database.writing` says so.
    connection.isolation_level = None
    for pragma in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")

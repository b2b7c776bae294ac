"""Measure pages, API and command line over a large archive: ``make speed``.

An archive in PostgreSQL is filled with ``--archived`` deliveries of the last 14 days, and a journal
with ``--journal`` of the last minutes, which the archiver copies. Then, while deliveries come, each
page is opened in chromium on a screen and on a phone, in light and in dark, and the list is opened
with each of `FILTERS`. Times are the browser's own: from the beginning of the navigation until the
page is loaded, in ms. ``--archive URL`` is a database that was filled before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import median
from urllib.parse import parse_qsl
from urllib.request import Request, urlopen

from gateway.archive.database import Database
from gateway.archive.tables import DELIVERIES, row
from gateway.config.settings import Config
from gateway.journal.entry import (
    ANSWERED_LATE,
    DEAD_LETTERED,
    EXPIRED,
    FAILED,
    IGNORED,
    REFUSED,
    SUCCEEDED,
    Entry,
)
from gateway.journal.store import JournalStore, Row
from tests.admin_page import TOKEN, Page, loaded, served
from tests.pages import SCHEMES, SCREENS, browser
from tests.support.stack import Server, Stack

DAYS = 14
_BATCH = 100
PAGES = ("/", "/failures", "/deliveries", "/routes", "/sources", "/workers", "/servers",
         "/again?state=failed&since=10m")  # fmt: skip
#: The texts are an order, one that is frequent, one that is rare, and ones that nothing has.
FILTERS = (
    "",
    "state=failed",
    "state=failed,dead-lettered,expired",
    "state=dead-lettered",
    "status=504",
    "status=4xx",
    "route=/stripe",
    "route=/or*",
    "source=partners",
    "event=orders/paid",
    "event=*request",
    "since=1h",
    "since=3d&until=2d",
    "text=43823762",
    "text=example.com",
    "text=cnpato+cmgolo",
    "text=nothing+has+this",
    "text=qqqq",
    "state=failed&route=/stripe&since=7d",
    "state=refused&source=forge&event=push",
    "status=502&since=10d&until=9d",
    "state=succeeded&source=stripe&route=/or*",
    "state=failed&text=cnpato",
)
#: Path, source, task, how many of a hundred, and events.
ROUTES = (
    ("/orders/{shop}", "", "shop.take_order", 40, ("",)),
    ("/shopify", "my-shopify", "shop.take_order", 20, ("orders/create", "orders/paid")),
    ("/stripe", "stripe", "billing.event", 15, ("charge.succeeded", "invoice.paid", "refund")),
    ("/forge", "forge", "ci.build", 12, ("push", "pull_request", "issues", "release")),
    ("/wechat", "wechat", "chat.answer", 10, ("text", "image", "subscribe")),
    ("/partners", "partners", "stock.update", 3, ("stock",)),
)
#: How many of ten thousand have a state, its status, and an error.
STATES = (
    (SUCCEEDED, 9_580, 200, ""),
    (FAILED, 150, 502, "TaskFailed: OperationalError: no connection to the stock's database"),
    (EXPIRED, 45, 504, "TaskFailed: TaskRevokedError: expired"),
    (DEAD_LETTERED, 5, 502, "TaskFailed: WorkerLostError: its workers were lost 3 times"),
    (REFUSED, 120, 401, "the signature is wrong"),
    (IGNORED, 60, 200, "no route takes this event"),
    (ANSWERED_LATE, 40, 202, ""),
)
_OF = random.Random(4)
_WORDS = [
    "".join(_OF.choices("bcdfghklmnprstvz", k=3)) + _OF.choice(("ane", "olo", "ipe", "eru", "ato"))
    for _ in range(600)
]
_TEXTS = [" ".join(_OF.choices(_WORDS, k=3)) for _ in range(5_000)]
_ROUTES = [route for route in ROUTES for _ in range(route[3])]


def number(of: random.Random) -> int:
    return int(10**7 + of.random() * 9 * 10**7)


def body(of: random.Random, order: int) -> str:
    """Return a sender's JSON, of 200 to 2,000 bytes."""
    length, size, lines = int(200 * 10 ** of.random()), 60, []
    while size < length - 100:
        text = f"{of.choice(_TEXTS)} {of.choice(_TEXTS)}"
        lines.append({"sku": number(of), "title": text, "price": int(of.random() * 100) / 10})
        size += len(text) + 45
    return json.dumps(
        {"id": order, "email": f"{of.choice(_TEXTS)[:6]}@example.com", "lines": lines}
    )


def made(of: random.Random, at: float, n: int = 0) -> Entry:
    """Return a delivery of the time `at` (epoch), the nth of its millisecond."""
    path, source, task, _, events = of.choice(_ROUTES)
    state, _, status, error = of.choices(STATES, [each[1] for each in STATES])[0]
    delivery_id, task_id = (str(uuid.UUID(int=of.getrandbits(128), version=4)) for _ in "12")
    order = number(of)
    received = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    headers = {"host": "hooks.example.com", "content-type": "application/json",
               "user-agent": "Sender/1.0", "x-request-id": task_id}  # fmt: skip
    delivery = {
        "id": delivery_id, "source": source, "event": of.choice(events), "route": path,
        "params": {"shop": of.choice(_WORDS)} if "{" in path else {}, "store": False,
        "received_at": received, "remote": f"192.0.2.{of.randrange(250)}",
    }  # fmt: skip
    call = json.dumps([[{}, headers, body(of, order)], {}, {}]).encode()
    none = state in (REFUSED, IGNORED)
    return Entry(
        delivery, "" if none else task, "" if none else task_id, "" if none else "celery",
        status, of.expovariate(8), call, error, {}, state, "" if none else received,
        position=f"{int(at * 1000)}-{n}",
        attempts=int(not none), published=None if none else 0.004,
        request={"method": "POST", "path": path, "truncated": False} if none else {},
        identity=delivery_id.replace("-", ""),
    )  # fmt: skip


async def fill_journal(config: Config, many: int) -> None:
    """Write `many` deliveries."""
    of = random.Random(73)
    async with JournalStore.opened(config) as store:
        for _ in range(0, many, _BATCH):
            await store.write([_row(made(of, time.time())) for _ in range(_BATCH)])


def _row(entry: Entry) -> Row:
    names = ("delivery", "task", "queue", "request", "identity")
    about = {name: getattr(entry, name) for name in names}
    numbers = (f"{entry.seconds:.6f}", "0.004", entry.error, "1")
    state = SUCCEEDED if entry.state == ANSWERED_LATE else entry.state  # as it is at first
    own = (entry.id, state, 0, entry.task_id, str(entry.status), *numbers)
    return (*own, json.dumps(about), "", entry.call)


def fill_archive(config: Config, many: int) -> None:
    """Write `many` deliveries of the last `DAYS`; the index of texts is made at the end."""
    import psycopg

    database = Database(config)
    database.migrate()
    end = time.time() - 600
    names = [column.name for column in DELIVERIES.columns]
    of, first = random.Random(37), end - DAYS * 86_400
    with psycopg.connect(config.archive, autocommit=True) as connection:
        (index,) = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexname = 'deliveries_text'"
        ).fetchone() or ("",)
        connection.execute("DROP INDEX deliveries_text")
        # What the archiver writes makes the partitions.
        with database.writing() as writing:
            days = [first + 86_400 * day for day in range(DAYS)] + [end]
            database.write(writing, [row(made(of, at, 9)) for at in days])
        with connection.cursor() as cursor:
            copying = f"COPY deliveries ({','.join(names)}) FROM STDIN"
            with cursor.copy(copying) as copy:
                for n in range(many):
                    at = first + (end - first) * (n + 0.5) / many
                    found = row(made(of, at, n % 4))
                    copy.write_row([found[name] for name in names])
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute(index.replace(" ON ONLY ", " ON "))
        connection.execute("VACUUM ANALYZE deliveries")


def loaded_in(page: Page, path: str) -> float:
    """Open a page and return in how many ms it was there, as the browser has measured."""
    page.open(path)
    return float(page.run("performance.getEntriesByType('navigation')[0].loadEventEnd"))


def p95(times: Sequence[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1) + 0.5)]


def asked(gateway: Server, query: str) -> float:
    """Ask the API for a page of deliveries; return the ms."""
    url = f"{gateway.admin_url}/api/deliveries?{query}"
    request = Request(url, headers={"Authorization": f"Bearer {TOKEN}".encode().decode("latin-1")})
    begin = time.perf_counter()
    with urlopen(request) as answer:
        answer.read()
    return 1e3 * (time.perf_counter() - begin)


def commanded(argv: Sequence[str], query: str) -> float:
    """Run `gateway deliveries list`; return the ms."""
    given = [f"--{name}={value}" for name, value in parse_qsl(query)]
    begin = time.perf_counter()
    subprocess.run([*argv, *given], check=True, capture_output=True)
    return 1e3 * (time.perf_counter() - begin)


def pages(page: Page, rounds: int) -> Iterator[str]:
    """Yield how long each page takes until it is seen first, in each form."""
    yield "| page | " + " | ".join(f"{w}, {s}" for w in SCREENS for s in SCHEMES) + " |"
    page.open("/deliveries?state=failed")
    page.until("document.querySelectorAll('a.row').length > 0")
    one = page.run("document.querySelector('a.row').getAttribute('href')")
    for path in (*PAGES, f"/{one}"):
        cells = []
        for where, size in SCREENS.items():
            for scheme in SCHEMES:
                page.tab.lay_out(*size, mobile=where == "phone", scheme=scheme)
                times = [loaded_in(page, path) for _ in range(rounds)]
                cells.append(f"{median(times):.0f}, {p95(times):.0f}")
        yield f"| `{path.replace(one, 'deliveries/ID')}` | " + " | ".join(cells) + " |"


def filters(page: Page, gateway: Server, argv: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield how long each filter takes on the page, by the API and by the command line."""
    yield "| filter | deliveries | page | API | command |"
    page.tab.lay_out(*SCREENS["screen"], mobile=False, scheme="light")
    for query in FILTERS:
        at = f"/deliveries?{query}"
        loaded_in(page, at)
        rows = page.run("document.querySelectorAll('[data-row]').length")
        shown = [loaded_in(page, at) for _ in range(rounds)]
        told = [asked(gateway, query) for _ in range(rounds)]
        typed = [commanded(argv, query) for _ in range(max(rounds // 10, 1))]
        times = (f"{median(each):.0f}, {p95(each):.0f}" for each in (shown, told, typed))
        yield f"| `{query}` | {rows} | " + " | ".join(times) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print medians and 95th percentiles in ms."""
    parser = argparse.ArgumentParser(prog="tests.page_speed", description=__doc__)
    parser.add_argument("--archived", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--journal", type=int, default=100_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=50, metavar="N")
    parser.add_argument("--archive", metavar="URL", help="a database that was filled before")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name, Stack() as databases, browser() as tab:
        url = options.archive or databases.postgresql().url
        kept = f'journal = {options.journal}\njournal_bytes = 2000000000\narchive_url = "{url}"'
        directory = Path(name)
        with served(directory, kept) as (stack, store, gateway):
            own = {"journal": options.journal, "journal_bytes": 2_000_000_000}
            config = Config(**own, archive_url=url, result_backend=store.url)
            if not options.archive:
                fill_archive(config, options.archived)
            asyncio.run(fill_journal(config, options.journal))
            program = [sys.executable, "-m", "gateway"]
            given = ["--config", str(directory / "gateway.toml"), "--result-backend", store.url]
            subprocess.run([*program, "archive", "--once", *given], check=True)
            stack.spawn("archive", [*program, "archive", *given])
            page = Page(tab, gateway.admin_url)
            with loaded(gateway):
                page.unlock()
                listing = [*program, "deliveries", "list", *given]
                some = max(options.rounds // 5, 1)
                for line in chain(
                    pages(page, some), filters(page, gateway, listing, options.rounds)
                ):
                    sys.stdout.write(f"{line}\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

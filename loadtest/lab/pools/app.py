"""The Celery app whose worker pools are compared: calls that wait for a server, and summaries.

Of its environment, ``LAB_SERVER`` is the sleeping server's URL with a name, ``LAB_RECORDS`` the
SQLite file with the table of `loadtest.lab.pools.chords`, ``LAB_SETTINGS`` more settings, as JSON,
``LAB_BLOCKS`` for how many seconds each call also blocks.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
from contextlib import closing
from time import time
from typing import Any
from urllib.request import urlopen

from celery import Celery

app = Celery(
    "pools",
    broker=os.environ["GATEWAY_BROKER_URL"],
    backend=os.environ["GATEWAY_RESULT_BACKEND"],
)
app.conf.update(worker_prefetch_multiplier=1, **json.loads(os.environ.get("LAB_SETTINGS", "{}")))

_TIMEOUT = 60  # seconds
_WRITING = 60  # seconds to wait for other processes that write


@app.task(name="lab.call")
def call(number: int) -> dict[str, float]:
    """Call the server, and record the sleep, the time that the call took, its start and its end.

    All are in seconds; start and end since 1970.
    """
    start = time()
    with urlopen(f"{os.environ['LAB_SERVER']}/{number}", timeout=_TIMEOUT) as answer:
        sleep = json.load(answer)["sleep"]
    # In C code, whose waiting nobody patches: no other greenlet runs meanwhile.
    ctypes.CDLL(None).usleep(int(1e6 * float(os.environ["LAB_BLOCKS"])))
    end = time()
    record = {"id": number, "sleep": sleep, "total": end - start, "start": start, "end": end}
    with closing(sqlite3.connect(os.environ["LAB_RECORDS"], timeout=_WRITING)) as file, file:
        file.execute("INSERT INTO records VALUES (:id, :sleep, :total, :start, :end)", record)
    return record


@app.task(name="lab.summarise")
def summarise(records: list[dict[str, float]]) -> dict[str, Any]:
    """Return the ids of the records, the sum of their sleeps, the first start, and the end."""
    return {
        "ids": sorted(record["id"] for record in records),
        "sleep": sum(record["sleep"] for record in records),
        "start": min(record["start"] for record in records),
        "end": time(),
    }

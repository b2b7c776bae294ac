"""Write log lines to standard error in a thread, so that a slow reader delays no request."""

from __future__ import annotations

import atexit
import json
import logging
import queue
import sys
from contextlib import suppress
from datetime import datetime
from logging.handlers import QueueHandler, QueueListener

#: Lines that may wait to be written; while the reader does not read, further ones are dropped.
WAITING = 10_000
LAST = 1.0  # seconds for writing the last lines when the process ends
MOST = 10  # lines a second with the same text
_TEXTS = 1_000  # the most texts that are counted; the code has fewer


class _Handler(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        # A line is dropped on purpose if the queue is full: nothing may wait for the log.
        with suppress(queue.Full):
            self.queue.put_nowait(record)


class Listener(QueueListener):
    """Writes the lines; `stop` does not wait for a reader that has stopped reading."""

    def stop(self) -> None:
        with suppress(queue.Full):
            self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(LAST)
            if self._thread.is_alive():
                # It would wait for the lock of the handler that this thread writes with.
                atexit.unregister(logging.shutdown)


class Sparing(logging.Filter):
    """Passes at most `most` lines a second with the same text, and counts those it drops.

    In an outage every request fails, and the log need not have a line for each. Texts are compared
    before their arguments are filled in.
    """

    def __init__(self, most: int):
        super().__init__("gateway")
        self._most = most
        # For each text the second of its last line, and the number of its lines in that second.
        self._counts: dict[str, tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):  # a library's: its texts may differ in each line
            return True
        text, now = record.msg, int(record.created)
        second, count = self._counts.get(text, (now, 0))
        if now != second:
            if count > self._most:
                record.msg = f"{text} ({count - self._most} similar lines dropped before)"
            count = 0
        if len(self._counts) >= _TEXTS:
            self._counts.clear()
        self._counts[text] = now, count + 1
        return count < self._most


class _Text(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time as RFC 3339 has it, with milliseconds and the offset from UTC."""
        when = datetime.fromtimestamp(record.created).astimezone()
        return when.isoformat(timespec="milliseconds")


class _JSON(_Text):
    """Writes a line as an object; the fields of the record's ``fields`` are its own, too."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line, ensure_ascii=False)


def formatter(form: str) -> logging.Formatter:
    """Return what makes lines as ``text`` or ``json``."""
    if form == "json":
        return _JSON()
    return _Text("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")


def start(form: str) -> Listener:
    """Send all log lines to standard error as ``text`` or ``json``.

    The caller stops the listener that is returned when the process ends.
    """
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(formatter(form))
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
    listener = Listener(waiting, output)
    root = logging.getLogger()
    handler = _Handler(waiting)
    handler.addFilter(Sparing(MOST))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # pika logs every step of every attempt; the publisher logs one line for what matters.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
    listener.start()
    return listener

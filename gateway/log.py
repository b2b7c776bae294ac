"""Log lines on standard error, written by a thread: a slow reader delays no request."""

from __future__ import annotations

import json
import logging
import queue
import sys
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener

#: Lines that wait to be written; further ones are dropped while the reader stands still.
WAITING = 10_000
LAST = 1.0  # seconds for the last lines to be written


class _Handler(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        # A full queue loses the line, on purpose: nothing waits for the log.
        with suppress(queue.Full):
            self.queue.put_nowait(record)


class Listener(QueueListener):
    """Writes the lines; its end does not wait for a reader that stands still."""

    def stop(self) -> None:
        with suppress(queue.Full):
            self.enqueue_sentinel()
        self._thread.join(LAST)


class Sparing(logging.Filter):
    """Lets a few lines a second pass, and says how many it has kept back."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most
        self._second = self._passed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            if self._passed > self._most:
                record.msg = f"{record.msg} ({self._passed - self._most} like it left out before)"
            self._second, self._passed = second, 0
        self._passed += 1
        return self._passed <= self._most


class _JSON(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line, ensure_ascii=False)


def start(form: str) -> Listener:
    """Send everyone's log lines to standard error as ``text`` or ``json``; stop it at the end."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(
        _JSON()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")
    )
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
    listener = Listener(waiting, output)
    root = logging.getLogger()
    root.handlers[:] = [_Handler(waiting)]
    root.setLevel(logging.INFO)
    # pika tells every step of every attempt; the publisher says in a line what counts.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
    listener.start()
    return listener

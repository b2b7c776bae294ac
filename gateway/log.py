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


class _Handler(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        # A full queue loses the line, on purpose: nothing waits for the log.
        with suppress(queue.Full):
            self.queue.put_nowait(record)


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


def start(form: str) -> QueueListener:
    """Send everyone's log lines to standard error as ``text`` or ``json``; stop it at the end."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(
        _JSON()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")
    )
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
    listener = QueueListener(waiting, output)
    root = logging.getLogger()
    root.handlers[:] = [_Handler(waiting)]
    root.setLevel(logging.INFO)
    # pika tells every step of every attempt; the publisher says in a line what counts.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
    listener.start()
    return listener

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
MOST = 10  # like lines a second
_TEXTS = 1_000  # that are counted; the code has fewer


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
        if self._thread is not None:
            self._thread.join(LAST)


class Sparing(logging.Filter):
    """Lets a few like lines a second pass, and says how many it has kept back.

    An outage fails every request: the log need not have each. Like lines have one text, before
    their arguments are put into it.
    """

    def __init__(self, most: int):
        super().__init__("gateway")
        self._most = most
        # The second of the last line of each text, and how many there were in it.
        self._counts: dict[str, tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):  # not ours, and perhaps with a text of its own each time
            return True
        text, now = record.msg, int(record.created)
        second, count = self._counts.get(text, (now, 0))
        if now != second:
            if count > self._most:
                record.msg = f"{text} ({count - self._most} like it left out before)"
            count = 0
        if len(self._counts) >= _TEXTS:
            self._counts.clear()
        self._counts[text] = now, count + 1
        return count < self._most


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
    handler = _Handler(waiting)
    handler.addFilter(Sparing(MOST))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # pika tells every step of every attempt; the publisher says in a line what counts.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
    listener.start()
    return listener

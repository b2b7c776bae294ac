"""Log lines: those that repeat themselves, those of requests, and those of operators."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from gateway import audit, log, request_log
from gateway.config.route import RESULTS
from gateway.log import Sparing

TEXT = "no broker at %s"


@pytest.fixture
def sparing() -> Sparing:
    return Sparing(2)


def lines(sparing: Sparing, text: str, count: int, second: int, name: str = "gateway.x") -> list:
    """Log `text` so many times; return what has passed."""
    passed = []
    for number in range(count):
        record = logging.LogRecord(name, logging.WARNING, "", 0, text, (number,), None)
        record.created = second + number / 1_000
        if sparing.filter(record):
            passed.append(record.getMessage())
    return passed


def test_like_lines_of_a_second_are_few_and_the_next_says_how_many_there_were(sparing):
    assert lines(sparing, TEXT, 5, second=7) == ["no broker at 0", "no broker at 1"]
    assert lines(sparing, TEXT, 1, second=8) == ["no broker at 0 (3 similar lines dropped before)"]
    assert lines(sparing, TEXT, 1, second=9) == ["no broker at 0"]


def test_other_lines_are_not_kept_back(sparing):
    assert len(lines(sparing, TEXT, 5, second=7)) == 2
    assert len(lines(sparing, "message returned: %s", 1, second=7)) == 1
    assert len(lines(sparing, TEXT, 5, second=7, name="pika.channel")) == 5


def test_only_so_many_texts_are_remembered(sparing, monkeypatch):
    monkeypatch.setattr(log, "_TEXTS", 10)
    for number in range(100):
        assert lines(sparing, f"text {number}: %s", 1, second=7)
    assert len(sparing._counts) <= 10


def test_every_line_of_the_gateway_goes_through_it(capfd):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    listener = log.start("text")
    try:
        for number in range(3 * log.MOST):
            logging.getLogger("gateway.amqp.broker").warning("message returned: %d", number)
            logging.getLogger("elsewhere").warning("something else: %d", number)
    finally:
        listener.stop()
        root.handlers[:], root.level = handlers, level
    written = capfd.readouterr().err
    # They may fall into two seconds.
    assert log.MOST <= written.count("message returned") <= 2 * log.MOST
    assert written.count("something else") == 3 * log.MOST


@pytest.mark.parametrize(
    ("about", "told", "line"),
    [
        (("GET", f"{RESULTS}secret", 200, 0.001), {"delivery": "d1"},
         "GET /results/- 200 1.0 ms delivery=d1"),  # the URL is a secret
        (("POST", "/hook", 0, 0.002), {"delivery": ""}, "POST /hook gone 2.0 ms"),
        (("POST", "/hook", 400, 0.001, "bad-request: json:/id is missing."), {},
         "POST /hook 400 1.0 ms: bad-request: json:/id is missing."),
        (("POST", "/hook", 400, 0.001, "two\nlines"), {"waited_ms": 1.25, "event": "a b\n"},
         r"""POST /hook 400 1.0 ms waited_ms=1.2 event="a b\n": 'two\nlines'"""),
        (("POST", "/a\nb", 400, 0.001, "late"), {"trace": "4bf9"},
         r"POST '/a\nb' 400 1.0 ms trace=4bf9: late"),
    ],
)  # fmt: skip
def test_a_request_is_one_line_with_the_reason_at_its_end(caplog, about, told, line):
    caplog.set_level(logging.INFO, "requests")
    request_log.write(*about, **told)
    assert caplog.messages == [line]


def test_a_process_ends_whose_log_nobody_reads():
    program = (
        "import logging; from gateway import log; listener = log.start('text')\n"
        "for n in range(5_000): logging.getLogger(str(n)).warning('x' * 100)\n"
        "listener.stop()"
    )
    reading, writing = os.pipe()
    try:
        ended = subprocess.run([sys.executable, "-c", program], stderr=writing, timeout=30)
    finally:
        os.close(reading)
        os.close(writing)
    assert ended.returncode == 0


def test_a_filter_is_noted_as_it_is_written_on_the_command_line(caplog):
    since = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with caplog.at_level(logging.INFO, "audit"):
        audit.note(audit.REPLAY, "ann@desk", state=frozenset({"failed", "expired"}), since=since)
    assert caplog.messages == [
        "replay by ann@desk state='expired,failed' since='2026-01-31T12:00:00+00:00'"
    ]
    (record,) = caplog.records
    assert record.fields["state"] == "expired,failed"

"""What a request's log line tells, and what it does not."""

from __future__ import annotations

import logging

from gateway import request_log
from gateway.config.route import RESULTS


def test_a_result_s_url_is_not_logged(caplog):
    caplog.set_level(logging.INFO, "requests")
    request_log.write("GET", f"{RESULTS}secret", 200, 0.001, delivery="d1")
    request_log.write("POST", "/hook", 0, 0.002, delivery="")
    assert [record.getMessage() for record in caplog.records] == [
        "GET /results/- 200 1.0 ms delivery=d1",
        "POST /hook gone 2.0 ms",
    ]


def test_the_reason_is_the_end_of_the_line_and_stays_in_it(caplog):
    caplog.set_level(logging.INFO, "requests")
    request_log.write("POST", "/hook", 400, 0.001, "bad-request: json:/id is missing.")
    request_log.write("POST", "/hook", 400, 0.001, "two\nlines", waited_ms=1.25, event="a b\n")
    request_log.write("POST", "/a\nb", 400, 0.001, "late", trace="4bf9")
    assert [record.getMessage() for record in caplog.records] == [
        "POST /hook 400 1.0 ms: bad-request: json:/id is missing.",
        'POST /hook 400 1.0 ms waited_ms=1.2 event="a b\\n": ' + r"'two\nlines'",
        r"POST '/a\nb' 400 1.0 ms trace=4bf9: late",
    ]

import logging
from datetime import UTC, datetime

from gateway import audit


def test_a_filter_is_noted_as_it_is_written_on_the_command_line(caplog):
    since = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with caplog.at_level(logging.INFO, "audit"):
        audit.note(audit.REPLAY, "ann@desk", state=frozenset({"failed", "expired"}), since=since)
    assert caplog.messages == [
        "replay by ann@desk state='expired,failed' since='2026-01-31T12:00:00+00:00'"
    ]
    (record,) = caplog.records
    assert record.fields["state"] == "expired,failed"

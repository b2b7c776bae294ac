"""Failures that differ in values only are in one group."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.journal.filter import Filter
from gateway.journal.groups import (
    AGAIN,
    DAY,
    MUTED,
    NEW,
    RESOLVED,
    STILL,
    About,
    Group,
    general,
    group_of,
    stored,
)
from tests.unit.journal.test_entries import entry


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'shipping_lines'", "'shipping_lines'"),
        ("'erika 4711'", "{text}"),
        ("can't open 'a.txt' of user \"bob\"", "can't open {text} of user {text}"),
        ("it's 5 o'clock", "it's {n} o'clock"),
        ("took 10 min, not -3.5 s or 1,000", "took {n} min, not {n} s or {n}"),
        ("order 6f3b2c5e-1111-4444-8888-0123456789ab of shop7", "order {id} of {id}"),
        ("no erika@a.example at 10.0.0.1:80, ::1", "no {address} at {address}, {address}"),
        ("GET https://a.example/?c=1: 503", "GET {url} {n}"),
        ("at 2026-01-31T12:00:00.5Z, 12:00:01", "at {time}, {time}"),
        ("<Foo at 0x7f00deadbeef>\n  twice", "<Foo at {id}> twice"),
        ("a" * 300, "a" * 199 + "…"),
    ],
)  # fmt: skip
def test_values_have_placeholders(text: str, shown: str):
    assert general(text) == shown


@given(st.text() | st.from_regex(r"([\w'\":@./ -]){0,60}"))
def test_no_number_is_left_and_the_text_is_bounded(text: str):
    shown = general(text)
    assert len(shown) <= 200
    assert not re.search(r"\d", shown)


VALUES = {
    "n": st.integers().map(str) | st.floats(-1e9, 1e9).map("{:.3f}".format),
    "id": st.uuids().map(lambda each: f"a{each}"),
    "address": st.from_regex(r"[a-z0-9.+-]{1,9}@[a-z]{1,9}\.example", fullmatch=True)
    | st.ip_addresses().map(str),
    "time": st.datetimes().map(lambda each: each.isoformat(timespec="seconds")),
    "text": st.from_regex(r"'[a-z 0-9]{0,9} '", fullmatch=True),
    "url": st.from_regex(r"https?://[a-z0-9./?=&]{1,20}", fullmatch=True),
}


@given(st.data(), st.lists(st.sampled_from(list(VALUES)), max_size=5))
def test_texts_that_differ_in_values_are_one(data: st.DataObject, kinds: list[str]):
    text = " ".join(f"the {data.draw(VALUES[kind])} of" for kind in kinds)
    assert general(text) == " ".join(f"the {{{kind}}} of" for kind in kinds)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        ("KeyError: 'a'", "KeyError", "'a'"),
        ("task-failed: KeyError: 'a'", "KeyError", "'a'"),
        ("result-unusable: The result has 9 bytes.", "", "The result has {n} bytes."),
        ("TaskRevokedError", "TaskRevokedError", ""),
        ("no JSON result (ValueError)", "", "no JSON result (ValueError)"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_an_error_has_a_type_and_a_text(error: str, kind: str, text: str):
    about = group_of(entry(state="failed", error=error))
    assert about == About("failed", "/orders/{shop}", "t", kind, text)
    assert Filter(group=about.id).takes(entry(state="failed", error=error))


def test_what_differs_otherwise_is_another_group():
    failed = entry(state="failed", error="E: 1")
    own = group_of(failed)
    assert own is not None
    others = [
        entry(state="expired", error="E: 1"), entry(state="failed", error="F: 1"),
        entry(state="failed", error="E: a"), entry(state="failed", error="E: 1", task="u"),
        entry(state="succeeded", error="E: 1"),
    ]  # fmt: skip
    assert [each for each in others if Filter(group=own.id).takes(each)] == []
    assert group_of(others[-1]) is None


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, NEW),
        ({"first": 1}, STILL),
        ({"again": 5}, AGAIN),
        ({"again": 5, "muted": DAY + 11}, MUTED),
        ({"muted": DAY + 10}, NEW),
        ({"resolved": 7, "muted": DAY + 11}, RESOLVED),
    ],
)
def test_the_state_of_a_group(fields: dict[str, int], state: str):
    about = About("failed", "/", "t", "E", "")
    own = {"first": 11, "last": 12, "now": DAY + 10, **fields}
    assert Group(about, count=1, latest=["d"], hours=[0] * 24, **own).state == state


def test_a_group_that_another_version_has_written_is_read():
    about = About("failed", "/", "t", "E", "")
    times = (b"count", b"1", b"first", b"11", b"last", b"12", b"latest", b"d ", b"more", b"x")
    found = stored((b"about", json.dumps([*about, "more"]).encode(), *times), 20)
    assert (found.about, found.latest, found.state) == (about, ["d"], NEW)

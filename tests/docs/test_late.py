"""docs/late.md: every sender with its hosts, time and tries, and every key of a block."""

from __future__ import annotations

import re

from gateway.config.late import Fetch, Late, senders
from tests.docs.test_documents import text

DOCUMENT = text("docs/late.md")
ROWS = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", DOCUMENT, re.M))
SPANS = {900: "15 min", 1800: "30 min", 5400: "90 min", 86_400: "24 h", 172_800: "48 h"}


def test_every_sender_is_described_as_its_block_says():
    for name in senders():
        late, row = Late.model_validate(name), ROWS[name]
        assert f"`{late.hosts[0]}`" in row, name
        assert SPANS[late.window] in row, name
        assert f"| {late.tries} |" in row, name
        assert row.endswith("it replaces" if late.replaces else "never"), name
        assert late.sources, name
        assert not late.silent or "`success`" in DOCUMENT, name


def test_every_key_is_described():
    section = DOCUMENT.partition("## A block")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {*Late.model_fields}
    for name in Fetch.model_fields:
        assert f"`{name}`" in section

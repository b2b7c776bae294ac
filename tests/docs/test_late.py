"""docs/late.md: every key of a block."""

from __future__ import annotations

import re

from gateway.config.late import Fetch, Late
from tests.docs.test_documents import text


def test_every_key_is_described():
    section = text("docs/late.md").partition("## A block")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {*Late.model_fields}
    for name in Fetch.model_fields:
        assert f"`{name}`" in section

"""``pytest tests/unit/sources --hypothesis-profile=thorough``: ten thousands of cases."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("thorough", max_examples=2_000, deadline=None)

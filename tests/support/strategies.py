"""The strategies, for tests that run with each of them."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES

#: The contract suite compares all six in `make test`; other tests do that in `make test-all` only.
_USUAL = ("pika", "redis")
EACH = [pytest.param(name, marks=() if name in _USUAL else pytest.mark.long) for name in STRATEGIES]

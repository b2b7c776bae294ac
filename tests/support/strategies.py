"""The strategies as parameters of tests."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES

#: Those for comparison, which `make test` leaves out.
_COMPARED = ("ioloop", "gevent", "threadpool", "blocking")
EACH = [
    pytest.param(name, marks=pytest.mark.long if name in _COMPARED else ()) for name in STRATEGIES
]

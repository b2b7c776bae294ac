"""The strategies as parameters of tests; `make test` leaves out those for comparison."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES

COMPARED = ["ioloop", "gevent", "threadpool", "blocking"]
USED = [name for name in STRATEGIES if name not in COMPARED]
EACH = [*USED, *(pytest.param(name, marks=pytest.mark.long) for name in COMPARED)]

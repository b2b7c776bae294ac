"""The strategies as parameters of tests; `make test` leaves out those for comparison."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES

USED = ["pika", "redis"]
COMPARED = [name for name in STRATEGIES if name not in USED]
EACH = [*USED, *(pytest.param(name, marks=pytest.mark.long) for name in COMPARED)]

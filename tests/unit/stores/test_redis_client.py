"""redis-py is loaded by what needs Redis, and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED = """
import json, sys
import gateway.process.child
from gateway.strategies import find
find(sys.argv[1])
print(json.dumps(sorted({"redis", "celery"} & sys.modules.keys())))
"""


@pytest.mark.parametrize(
    ("strategy", "libraries"), [("pika", []), ("redis", []), ("threadpool", ["celery", "redis"])]
)
def test_a_gateway_loads_redis_py_when_it_connects(strategy, libraries):
    asked = [sys.executable, "-c", LOADED, strategy]
    loaded = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert json.loads(loaded) == libraries

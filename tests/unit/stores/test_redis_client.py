"""redis-py is loaded by what needs Redis, and by nothing else."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
import gateway.process.child
from gateway.strategies import find
for name in ("pika", "redis", "threadpool"):
    find(name)
    print(name, *sorted({"redis", "celery"} & sys.modules.keys()))
"""


def test_a_gateway_loads_redis_py_when_it_connects():
    asked = [sys.executable, "-c", LOADED]
    loaded = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert loaded.splitlines() == ["pika", "redis", "threadpool celery redis"]

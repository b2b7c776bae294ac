"""The command `gateway` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

GATEWAY = [sys.executable, "-m", "gateway"]


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of the gateway's to its end, with `options` of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": 180, **options}
    return subprocess.run([*GATEWAY, *args], **options)

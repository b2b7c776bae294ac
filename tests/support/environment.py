"""What programs that tests start inherit from this process's environment."""

from __future__ import annotations

import os


def measured() -> dict[str, str]:
    """Return the variables by which coverage measures the processes that are started."""
    return {key: value for key, value in os.environ.items() if key.startswith("COVERAGE_")}


def inherited() -> dict[str, str]:
    """Return what any program needs, without what somebody has set for a gateway of theirs."""
    needed = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return needed | measured()

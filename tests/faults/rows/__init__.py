"""The rows of the matrix: each module's functions, of which `row` says what else they are."""

from __future__ import annotations

from tests.faults import trial
from tests.faults.rows import (
    brokers,
    clusters,
    gateways,
    machine,
    network,
    replies,
    results,
    senders,
    workers,
)

__all__ = ["brokers", "clusters", "gateways", "machine", "network", "replies", "results"]
__all__ += ["senders", "workers"]

ROWS = dict(sorted(trial.ROWS.items()))
#: What is run where no rows are named, and what `--rows cluster` means.
ALONE = [number for number in ROWS if number <= 40]
CLUSTER = [number for number in ROWS if number > 40]

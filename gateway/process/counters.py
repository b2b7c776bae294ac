"""Read the counters of the children in their parent, and add them up."""

from __future__ import annotations

import json
import logging
import mmap
import os
import tempfile
from collections.abc import Iterable

from gateway.metrics import FORM, GAUGES, HEAD, SEEN_ALIKE, Series

log = logging.getLogger(__name__)

Totals = dict[Series, float]


class Counters:
    """The file of one child's counters (see `gateway.metrics`), which the parent keeps open."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="gateway-metrics-")  # noqa: SIM115 - `close`
        self._series: list[Series] = []
        self._values: memoryview[float] | None = None
        self._strange = False

    def fileno(self) -> int:
        return self._file.fileno()

    def totals(self, alive: bool = True) -> Totals:
        """Return every series with its value; without gauges where the child is not `alive`.

        It is empty until the child has written its file.
        """
        if self._values is None:
            self._open()
        if self._values is None:
            return {}
        pairs = zip(self._series, self._values, strict=True)
        return {series: value for series, value in pairs if alive or series[0] not in GAUGES}

    def close(self) -> None:
        if self._values is not None:
            self._values.release()
        self._file.close()

    def _open(self) -> None:
        """Map the file into memory, if the child has written its head."""
        head = os.pread(self.fileno(), HEAD.size, 0)
        if len(head) < HEAD.size or not any(head) or self._strange:
            return
        form, size, start = HEAD.unpack(head)
        if form != FORM:
            self._strange = True
            log.warning(
                "the counters of a child of another version have an unknown form, %r: restart the "
                "gateway to see them",
                form,
            )
            return
        described = json.loads(os.pread(self.fileno(), size, HEAD.size))
        self._series = [(name, tuple(labels.items())) for name, labels in described]
        mapped = mmap.mmap(self.fileno(), 0, prot=mmap.PROT_READ)
        self._values = memoryview(mapped)[start:].cast("d")


def add_up(parts: Iterable[Totals]) -> Totals:
    """Add up the `totals` of several processes."""
    total: Totals = {}
    for part in parts:
        for series, value in part.items():
            known = total.get(series, 0.0)
            total[series] = max(known, value) if series[0] in SEEN_ALIKE else known + value
    return total

"""Tell a service manager, such as systemd, how the gateway is (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

log = logging.getLogger(__name__)


class ServiceManager:
    """Is told how the gateway is, at its socket `address`; empty: there is none.

    If it is not told for `watchdog` seconds that the gateway works, it restarts it; 0: it does not
    ask for that.
    """

    def __init__(self, address: str, watchdog: float = 0.0):
        self.address = address
        self.watchdog = watchdog
        self._away = False

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Self:
        """Take its variables out of the `environment`, which the children inherit."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        ours = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(address, int(microseconds) / 1e6 if ours and microseconds.isdigit() else 0.0)

    def notify(self, *assignments: str) -> bool:
        """Send `assignments` such as ``READY=1`` together; tell whether they were sent.

        It never waits. The first of several errors is logged.
        """
        if not self.address:
            return False
        abstract = self.address.startswith("@")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.connect(f"\0{self.address[1:]}" if abstract else self.address)
                sender.send("\n".join(assignments).encode())
        except OSError as exc:
            if not self._away:
                log.warning("cannot tell the service manager %s: %s", " ".join(assignments), exc)
            self._away = True
            return False
        self._away = False
        return True

    def reloading(self) -> None:
        """Say that a reload has begun; ``READY=1`` ends it."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")

"""Push the metrics to a collector, where `metrics_endpoint` asks for it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway import background
from gateway.admin.families import About, families
from gateway.config.settings import Config
from gateway.process import health
from gateway.process.supervisor import Supervisor

if TYPE_CHECKING:
    from gateway.admin.otlp import Exporter

log = logging.getLogger(__name__)

#: Seconds after which a push is given up; requests limits only the time between two bytes.
LONGEST = 30.0
LAST = 2.0  # seconds for the last push when the gateway ends
#: Seconds that a push waits for a process whose loop does not answer.
PATIENCE = 1.0


class Push:
    """Pushes every `Config.metrics_interval` seconds, and once more at the end.

    A collector that is slow or gone delays nothing: what it is sent is cumulative, so the next push
    makes up for a lost one.
    """

    def __init__(self, supervisor: Supervisor):
        self._supervisor = supervisor
        self._config: Config | None = None
        self._exporter: Exporter | None = None
        self._task = background.start(self._run(), "push of metrics")

    async def stop(self) -> None:
        """Push once more, for `LAST` seconds at most."""
        await background.stop(self._task)
        try:
            async with asyncio.timeout(LAST):
                await self._push()
        except TimeoutError:
            log.warning("the last metrics are lost: they were not exported within %g s", LAST)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._supervisor.config.metrics_interval)
            await self._push()

    async def _push(self) -> None:
        try:
            exporter = self._current()
            if exporter is not None:
                supervisor = self._supervisor
                about = About.of(supervisor, await health.ask(supervisor.children, PATIENCE))
                found = list(families(supervisor.totals(), about))
                async with asyncio.timeout(LONGEST):
                    await background.in_daemon_thread(lambda: exporter.export(found, about.started))
        except TimeoutError:
            log.warning("metrics are not exported: the collector took longer than %g s", LONGEST)
        except Exception:  # a gateway works without its metrics, whatever the SDK raises
            log.exception("the metrics were not pushed")

    def _current(self) -> Exporter | None:
        """Return the exporter of the present settings, which a reload may have changed."""
        config = self._supervisor.config
        if config is not self._config:
            self._config = config
            if self._exporter is not None:
                self._exporter.close()
            self._exporter = None
            if config.metrics_endpoint is not None:
                # OpenTelemetry is loaded only where it is used.
                from gateway.admin.otlp import Exporter

                self._exporter = Exporter(config)
        return self._exporter

"""Tell the service manager how the gateway is, as long as it runs."""

from __future__ import annotations

import asyncio

from gateway.clock import monotonic
from gateway.process import health
from gateway.process.service_manager import ServiceManager
from gateway.process.supervisor import Supervisor

PAUSE, STARTING = 5.0, 0.1  # seconds between two reports: the longest, and until it has started


async def report(supervisor: Supervisor, manager: ServiceManager) -> None:
    """Report until cancelled.

    The gateway has started when all its children work and one of them is ready, or when they have
    had `confirm_timeout` for that: without a broker it works, and answers requests with a 503. The
    watchdog is told as long as this loop runs and `health.alive` holds, as for ``/healthz``.
    """
    pause = min(PAUSE, manager.watchdog / 4 or PAUSE)
    started, announced, since, told = False, False, monotonic(), ""
    while True:
        answers = await health.ask(supervisor.children)
        if not started:
            if sum(checks is not None for _, checks in answers) < supervisor.config.processes:
                since = monotonic()
            elif health.ready(answers) or monotonic() - since > supervisor.config.confirm_timeout:
                started = True
        news = [] if (status := describe(answers)) == told else [f"STATUS={status}"]
        if started and not announced:
            news.append("READY=1")
        if manager.watchdog and health.alive(answers):
            news.append("WATCHDOG=1")
        # What could not be sent is sent again with the next report.
        if news and manager.tell(*news):
            told, announced = status, started
        await asyncio.sleep(pause if started else STARTING)


def describe(answers: health.Answers) -> str:
    """Say in a line whether the gateway is ready, and what is wrong."""
    processes = f"{len(answers)} {'process' if len(answers) == 1 else 'processes'}"
    state = "ready" if health.ready(answers) else "not ready"
    found = "; ".join(" ".join(text.split()) for text in health.failing(answers))
    return f"{state}, {processes}" + (f": {found}" if found else "")

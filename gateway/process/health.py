"""Ask the children how they are, and tell the service manager how the gateway is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.clock import monotonic
from gateway.process.child_handle import ASK_TIMEOUT, ChildHandle
from gateway.process.service_manager import ServiceManager
from gateway.process.supervisor import Supervisor

PAUSE, STARTING = 5.0, 0.1  # seconds between two reports: the longest, and until it has started

#: Each child with its checks; None: its loop does not answer in time.
Answers = list[tuple[ChildHandle, dict[str, str] | None]]


async def ask(children: Iterable[ChildHandle], timeout: float = ASK_TIMEOUT) -> Answers:
    """Ask all `children` at once; wait at most `timeout` seconds for them."""
    asked = list(children)
    found = await asyncio.gather(*(child.ask(timeout) for child in asked))
    return list(zip(asked, found, strict=True))


def alive(answers: Answers) -> bool:
    """Does at least one child answer, and all others as well, except those that come or go?

    One that is being started does not answer yet, and a retired one, which has a limited time, may
    not: that must not get the others killed.
    """
    silent = [child for child, checks in answers if checks is None]
    return len(silent) < len(answers) and all(child.starting or child.retired for child in silent)


def ready(answers: Answers, path: str = "") -> bool:
    """Does any child that is not draining serve a route; with `path`, all routes there?"""
    return any(checks is not None and child.serves(checks, path) for child, checks in answers)


def serves(supervisor: Supervisor, answers: Answers, path: str = "") -> bool:
    """Is the gateway `ready`, and not about to end?"""
    return not supervisor.draining and ready(answers, path)


def warnings(answers: Answers) -> list[str]:
    """Return what children that answer warn of, each text once."""
    texts = [text for child, checks in answers if checks is not None for text in child.warnings]
    return list(dict.fromkeys(texts))


def failing(answers: Answers) -> list[str]:
    """Return what is wrong, each text once; a silent child is named."""
    texts = [
        text
        for child, checks in answers
        for text in (
            [f"process {child.pid} does not answer"]
            if checks is None
            else [f"{name}: {error}" for name, error in checks.items() if error]
        )
    ]
    return list(dict.fromkeys(texts))


async def report(supervisor: Supervisor, manager: ServiceManager) -> None:
    """Report until cancelled.

    The gateway has started when all its children work and one of them is ready, or when they have
    had `confirm_timeout` for that: without a broker it works, and answers requests with a 503. The
    watchdog is told as long as this loop runs and `alive` holds, as for ``/healthz``.
    """
    pause = min(PAUSE, manager.watchdog / 4 or PAUSE)
    started, announced, since, reported = False, False, monotonic(), ""
    while True:
        answers = await ask(supervisor.children)
        if not started:
            if sum(checks is not None for _, checks in answers) < supervisor.config.processes:
                since = monotonic()
            elif ready(answers) or monotonic() - since > supervisor.config.confirm_timeout:
                started = True
        news = [] if (status := describe(answers)) == reported else [f"STATUS={status}"]
        if started and not announced:
            news.append("READY=1")
        if manager.watchdog and alive(answers):
            news.append("WATCHDOG=1")
        # What could not be sent is sent again with the next report.
        if news and manager.notify(*news):
            reported, announced = status, started
        await asyncio.sleep(pause if started else STARTING)


def describe(answers: Answers) -> str:
    """Say in a line whether the gateway is ready, and what is wrong."""
    processes = f"{len(answers)} {'process' if len(answers) == 1 else 'processes'}"
    state = "ready" if ready(answers) else "not ready"
    found = "; ".join(" ".join(text.split()) for text in failing(answers))
    return f"{state}, {processes}" + (f": {found}" if found else "")

"""The checks of `gateway check`: one module for each kind of server, and some for workers.

A check is a coroutine function that takes the configuration and returns findings. It is one line in
the table `CHECKS`. All checks run at the same time. A check that takes longer than `LIMIT` is
cancelled, and its findings are lost, so checks with several steps observe the limit themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any

from gateway.cli.checks import brokers, stores
from gateway.cli.checks.finding import LIMIT, Finding, fail, ok
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.failures.telling import send_test

Check = Callable[[Config], Awaitable[list[Finding]]]

CHECKS: dict[str, Check] = {
    "broker": brokers.check,
    "results": stores.check_results,
    "state": stores.check_state,
}
_MARGIN = 0.4  # seconds for closing connections after the limit
#: The order of the lines by their first words; lines with other first words come last.
#: A missing worker explains what the lines after it report.
_ORDER = (
    "broker", "results", "state", "workers", "queue", "exchange", "replies", "stored", "lost",
    "long", "task",
)  # fmt: skip


async def run(config: Config, notify: bool = False) -> list[Finding]:
    """Run all checks and return their findings; with `notify` a test is sent as one of them."""
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    checks = CHECKS | ({"notify": _notify} if notify else {})
    found = await asyncio.gather(*(_one(name, check, config) for name, check in checks.items()))
    return sorted((finding for findings in found for finding in findings), key=_place)


async def _one(name: str, check: Check, config: Config) -> list[Finding]:
    try:
        async with asyncio.timeout(LIMIT + _MARGIN):
            return await check(config)
    except TimeoutError:
        problem = f"the check did not end within {LIMIT:g} s"
        return [fail(name, problem, "check that the host answers")]
    except GatewayError as exc:  # the text has problem and remedy
        return [fail(name, str(exc), "")]


async def _notify(config: Config) -> list[Finding]:
    await send_test(config)
    return [ok("notify", "a test was sent: see whether it has arrived")]


def _place(finding: Finding) -> int:
    word = finding.check.split()[0]
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own, so that the process can end before the call.

    The look-up of a host's name cannot be cancelled, and may take very long.
    """

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **kwargs))
                except BaseException as exc:  # noqa: BLE001 - the future raises it, as in every executor
                    future.set_exception(exc)

        Thread(target=run, daemon=True).start()
        return future

"""What `gateway check` looks at: one module for each server, and one for what workers say.

A check is a coroutine function that takes the configuration and returns findings. It is one line
in the table `CHECKS`. All run beside each other. One that goes on for longer than `LIMIT` is ended,
and what it has found by then is lost: those that have more than one question keep to it themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.cli.checks import brokers, stores
from gateway.cli.checks.finding import LIMIT, Finding, fail
from gateway.cli.checks.threads import DaemonThreads
from gateway.config.settings import Config
from gateway.errors import GatewayError

Check = Callable[[Config], Awaitable[list[Finding]]]

CHECKS: dict[str, Check] = {
    "broker": brokers.check,
    "results": stores.check_results,
    "state": stores.check_state,
}
_MARGIN = 0.4  # seconds: those that keep to the limit themselves have to close connections, too
#: The order of lines; whatever begins with another word comes last.
_ORDER = ("broker", "results", "state", "queue", "workers", "replies", "stored", "task", "tasks")


async def run(config: Config) -> list[Finding]:
    """Return what all checks find."""
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    found = await asyncio.gather(*(_one(name, check, config) for name, check in CHECKS.items()))
    return sorted((finding for some in found for finding in some), key=_place)


async def _one(name: str, check: Check, config: Config) -> list[Finding]:
    try:
        async with asyncio.timeout(LIMIT + _MARGIN):
            return await check(config)
    except TimeoutError:
        return [
            fail(name, f"the check did not end within {LIMIT:g} s", "see that the host answers")
        ]
    except GatewayError as exc:  # as `result_store.asking` raises: problem and remedy in one
        return [fail(name, str(exc), "")]


def _place(finding: Finding) -> int:
    word = finding.check.split()[0]
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)

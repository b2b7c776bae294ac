"""Ask the children how they are, and judge the gateway by their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.process.child_handle import ASK_TIMEOUT, ChildHandle

#: Each child with its checks; None: its loop does not answer in time.
Answers = list[tuple[ChildHandle, dict[str, str] | None]]


async def ask(children: Iterable[ChildHandle], timeout: float = ASK_TIMEOUT) -> Answers:
    """Ask all `children` at once; wait at most `timeout` seconds for them."""
    asked = list(children)
    found = await asyncio.gather(*(child.ask(timeout) for child in asked))
    return list(zip(asked, found, strict=True))


def alive(answers: Answers) -> bool:
    """Does at least one child answer, and all others as well, except those being started?"""
    silent = [child for child, checks in answers if checks is None]
    # A child that is being started cannot answer yet; that must not get the others killed.
    return len(silent) < len(answers) and all(child.starting for child in silent)


def ready(answers: Answers, path: str = "") -> bool:
    """Does any child that is not draining serve a route; with `path`, all routes there?"""
    return any(checks is not None and child.serves(checks, path) for child, checks in answers)


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

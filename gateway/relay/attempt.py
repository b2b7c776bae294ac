"""A step towards an answer, and what becomes of its failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from gateway.errors import RequestError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Answering(Protocol):
    """Whatever an error can be the answer of."""

    @property
    def path(self) -> str:
        """The route's path; empty where no route is known."""

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`."""

    def release(self) -> None:
        """Give up what is waited for."""


def attempt(answering: Answering, step: Callable[..., T], *arguments: object) -> T | None:
    """Return what `step` returns; what it raises becomes the answer, and None is returned."""
    try:
        try:
            return step(*arguments)
        except RequestError as error:
            answering.refuse(error)
    # Steps are called by connections and sweeps that all requests share: whatever is wrong with
    # one request must not end those, and with them all the others.
    except Exception:
        log.exception("a request could not be answered (route %s)", answering.path or "none")
        answering.release()
        # From the loop itself, as the next answer may fail in the same way.
        asyncio.get_running_loop().call_soon(answering.refuse, RequestError())
    return None

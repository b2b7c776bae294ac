"""Wait on an event loop until several connections have consumed their parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadtest.lab.consumers.part import Part


class Ending:
    """Is reached when nothing is left of all `parts`, or when a connection or channel is lost."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait for it; raises the error of what was lost."""
        await self._reached

    def acknowledged(self, part: Part, begin: float) -> None:
        """Count an acknowledgement of `part` that was begun at `begin`; the last one is the end."""
        part.acknowledged(begin)
        if not (part.left or any(each.left for each in self._parts) or self._reached.done()):
            self._reached.set_result(None)

    def lost(self, _lost: object, error: BaseException | None) -> None:
        """Called when a connection or a channel is closed, for whatever reason."""
        if not self._reached.done():
            self._reached.set_exception(error or ConnectionError("closed without a reason"))

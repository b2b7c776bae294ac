"""What reads deliveries: the journal's store, or journal and archive as one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from gateway.errors import GatewayError
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter


class Reader(ABC):
    """Reads deliveries; raises `gateway.errors.GatewayError` where no store answers."""

    #: Why not all is read that there may be.
    problems: Sequence[str] = ()
    #: Where `find` has ended in the time that it had, as a position; "": at the end.
    reached = ""

    @abstractmethod
    async def get(self, delivery_id: str) -> Entry | None:
        """Return the delivery with this id; None: there is none."""

    @abstractmethod
    def find(
        self, wanted: Filter, before: str = "", patience: float = math.inf
    ) -> AsyncGenerator[Entry, None]:
        """Yield the deliveries that `wanted` takes, the newest first, without their calls.

        `before`: only those that are older than the one with this ``position``. After `patience`
        seconds it ends, and `reached` is where.
        """

    async def get_all(self, ids: Sequence[str]) -> list[Entry]:
        """Return the deliveries with these `ids`, in their order; it is an error if one is gone."""
        found = {each: await self.get(each) for each in ids}
        if missing := [each for each, entry in found.items() if entry is None]:
            where = "" if self.problems else " in the journal"
            why = "".join(f"; {problem}" for problem in self.problems)
            search = "`gateway deliveries list --text TEXT` finds a number or a name in a delivery"
            raise GatewayError(f"no such delivery{where}: {', '.join(missing)}{why}; {search}")
        return [entry for entry in found.values() if entry is not None]

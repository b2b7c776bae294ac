"""The page of sources: who sends, who is refused, and why."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from gateway.admin.families import STARTED
from gateway.admin.pages.counted import Counted
from gateway.admin.pages.view import View
from gateway.archive.reading import reading
from gateway.clock import monotonic
from gateway.errors import GatewayError
from gateway.journal.entry import REFUSED, Entry
from gateway.journal.filter import Filter

#: How many of the newest deliveries are looked through, and for how many seconds.
_LOOKED, _BUDGET = 2_000, 0.3
#: What metrics call a reason: how people read it, and what they can do about it.
REASONS = {
    "mismatch": (
        "the signature is wrong",
        (
            "Copy the secret from the sender's page, and compare it with secrets of the source.",
            "Is a proxy on the way that changes the body, the path or the query? Each of them may "
            "be signed.",
            "Try it: gateway send --as NAME --secret SECRET URL.",
        ),
    ),
    "missing": (
        "it is not signed",
        (
            "Set a secret on the sender's page: without one it signs nothing.",
            "Does a proxy on the way remove headers?",
            "Is it this sender at all? The address is in the delivery.",
        ),
    ),
    "timestamp": (
        "its time is too far from ours",
        (
            "Compare this machine's clock with others: timedatectl.",
            "Is the request one that was recorded, and sent again?",
            "The setting tolerance of the source says how many seconds are allowed.",
        ),
    ),
    "malformed": (
        "it is not in the sender's form",
        (
            "The text of the refusal says which part could not be read.",
            "Does the scheme of the source name this sender, and the version that it sends?",
        ),
    ),
}


class Sources(View):
    """Lists the sources, those that are refused first."""

    path, template = "sources", "sources.html"

    async def content(self, *path: str) -> dict[str, Any]:
        counted = Counted(self.supervisor)
        unverified, answers = counted.unverified(), counted.answers()
        found, problem = await self._newest()
        rows = []
        for name, options in self.config.sources.items():
            paths = list(dict.fromkeys(r.path for r in self.config.routes if r.source == name))
            own = [entry for entry in found if entry.delivery.get("source") == name]
            received = sum(answers[each].number for each in paths if each in answers)
            refused = sum(unverified[name].values())
            state = "well" if received else "silent"
            if refused:
                # Of those that are kept, the newest tells whether it is refused now.
                newest = own[0] if own else None
                bad = newest.state == REFUSED if newest else refused == received
                if bad:
                    state = "all refused" if refused >= received else "refused"
            rows.append({
                "name": name, "scheme": options.scheme, "paths": paths, "state": state,
                "received": received, "refused": refused, "reasons": dict(unverified[name]),
                "seen": _time(own), "good": _time([e for e in own if e.state != REFUSED]),
                "last": next((e for e in own if e.state == REFUSED), None),
            })  # fmt: skip
        order = {"all refused": 0, "refused": 1, "well": 2, "silent": 3}
        unsigned = [route.path for route in self.config.routes if not route.source]
        return {
            "kept": self.config.journal_refused and bool(self.config.journal),
            "opened": self.get_query_argument("open", ""), "problem": problem, "reasons": REASONS,
            "rows": sorted(rows, key=lambda row: order[row["state"]]), "started": STARTED,
            "unsigned": list(dict.fromkeys(unsigned)),
        }  # fmt: skip

    async def _newest(self) -> tuple[list[Entry], str]:
        """Return the newest deliveries, and why they could not be read; "": they could."""
        found: list[Entry] = []
        if not (self.config.journal or self.config.archive):
            return found, ""
        end = monotonic() + _BUDGET
        try:
            async with (
                reading(self.config) as reader,
                aclosing(reader.find(Filter())) as entries,
            ):
                async for entry in entries:
                    found.append(entry)
                    if len(found) == _LOOKED or monotonic() > end:
                        break
        except GatewayError as exc:
            return found, str(exc)
        return found, ""


def _time(entries: Sequence[Entry]) -> str:
    return str(entries[0].delivery["received_at"]) if entries else ""

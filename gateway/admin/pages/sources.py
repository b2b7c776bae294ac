"""The page of sources: who sends, who is refused, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gateway.admin.pages.counted import Counted
from gateway.admin.pages.view import View
from gateway.clock import monotonic
from gateway.errors import Unverified
from gateway.journal.entry import REFUSED, STATES, Entry
from gateway.journal.filter import Filter

#: How many of the newest deliveries are looked through, and for how many seconds; older ones that
#: were not refused are looked for as long, for each source until twice this time is over.
_LOOKED, _BUDGET = 2_000, 0.3
_TAKEN = frozenset(STATES) - {REFUSED}
#: What metrics call a reason: how people read it, and then what they can do about it.
REASONS = {
    "mismatch": (
        "the signature is wrong",
        "Copy the secret from the sender's page, and compare it with secrets of the source.",
        "Is a proxy on the way that changes the body, the path or the query? Each of them may be "
        "signed.",
        "Try it: gateway send --as NAME --secret SECRET URL.",
    ),
    "missing": (
        "it is not signed",
        "Set a secret on the sender's page: without one it signs nothing.",
        "Does a proxy on the way remove headers?",
        "Is it this sender at all? The address is in the delivery.",
    ),
    "timestamp": (
        "its time is too far from ours",
        "Compare this machine's clock with others: timedatectl.",
        "Is the request one that was recorded, and sent again?",
        "The setting tolerance of the source says how many seconds are allowed.",
    ),
    "encryption": (
        "it cannot be decrypted",
        "Compare the source's key for encryption with the one on the sender's page.",
    ),
    "malformed": (
        "it is not in the sender's form",
        "The text of the refusal says which part could not be read.",
        "Does the scheme of the source name this sender, and the version that it sends?",
    ),
}
#: What to do where a request was refused for something else: by types of `gateway.errors`.
NEXT = {
    "not-found": "Correct the address at the sender, or add a route.",
    "method-not-allowed": "Correct the method at the sender, or add it to `methods` of the route.",
    "bad-request": "It is no HTTP, or not what the route reads. Is it this sender at all?",
    "body-too-large": "If it is meant, raise max_body, and the limit of a proxy before it.",
    "body-too-slow": "Does a proxy hold it back?",
    "encoding-not-accepted": "Turn compression off at the sender, or set it to gzip.",
    "header-too-large": "Does a proxy add headers, or a cookie?",
    "uri-too-long": "Let the sender send this in the body.",
    "key-conflict": "Name another idempotency for the route, which tells the two apart.",
    "too-many": "The source is at its limit: see its settings rate and max_in_flight.",
}
_OTHERS = 8  # kinds of other refusals that are shown


class Other(NamedTuple):
    """Requests that were refused for something else than who has sent them, as the newest one."""

    many: int
    newest: Entry
    todo: str


class Sources(View):
    """Lists the sources, those that are refused first."""

    path, template = "sources", "sources.html"

    async def content(self, *path: str) -> dict[str, Any]:
        counted = Counted(self.supervisor)
        unverified, answers = counted.unverified(), counted.answers()
        end = monotonic() + 2 * _BUDGET
        found, problem = await self.latest(Filter(), _LOOKED, _BUDGET)
        rows, begun = [], self.shared.starts
        for name, options in self.config.sources.items():
            paths = list(dict.fromkeys(r.path for r in self.config.routes if r.source == name))
            own = [entry for entry in found if entry.delivery.get("source") == name]
            received = sum(answers[each].received for each in paths if each in answers)
            refused = sum(unverified[name].values())
            state = "well" if received else "silent"
            if refused:
                # Of those that are kept, the newest tells whether it is refused now.
                judged = [each for each in own if _signed(each) is not None]
                bad = not _signed(judged[0]) if judged else refused == received
                if bad:
                    state = "all refused" if refused >= received else "refused"
            last = next((e for e in own if e.state == REFUSED), None)
            good = _time([e for e in own if _signed(e)])
            wrong = next((e for e in own if _signed(e) is False), None)
            if last and not good and monotonic() < end:
                older, trouble = await self.latest(Filter(source=name, state=_TAKEN), 1, _BUDGET)
                good, problem = _time(older), problem or trouble
            kinds = sorted(unverified[name].items(), key=lambda kind: -kind[1])
            why = NEXT.get(_type(last), "") if last else ""
            if wrong and kinds and (wrong is last or state != "well"):
                why = f"{why} {verdict(kinds[0][0], wrong, good, begun)}".strip()
            rows.append({
                "name": name, "scheme": options.scheme, "paths": paths, "state": state,
                "received": received, "refused": refused, "reasons": dict(kinds),
                "seen": _time(own), "good": good, "last": last, "verdict": why,
            })  # fmt: skip
        order = {"all refused": 0, "refused": 1, "well": 2, "silent": 3}
        unsigned = [route.path for route in self.config.routes if not route.source]
        return {
            "kept": self.config.journal_refused and bool(self.config.journal),
            "others": others(found), "opened": self.get_query_argument("open", ""),
            "problem": problem, "reasons": REASONS,
            "rows": sorted(rows, key=lambda row: order[row["state"]]),
            "started": self.supervisor.started, "unsigned": list(dict.fromkeys(unsigned)),
        }  # fmt: skip


def verdict(reason: str, last: Entry, good: str, begun: Sequence[tuple[float, str]]) -> str:
    """Say what the refusals for a `reason` mean, the newest of which is `last`; "": nothing more.

    `good` is when the newest came that was not refused ("": none is known), and `begun` has when
    gateways have started.
    """
    if reason != "mismatch":
        return ""
    if not good:
        return (
            "None that is kept was signed with this secret: the sender has another one, or "
            "something on the way changes what is signed."
        )
    since, until = (datetime.fromisoformat(each).timestamp() for each in (good, _time([last])))
    if since > until:
        return "It is signed rightly now."
    between = [which for at, which in begun if since < at <= until]
    if between:
        return f"{between[-1]} has started in between: compare its secrets with those of before."
    return (
        "No gateway has started since: the secret was changed at the sender, or here by a reload, "
        "or something on the way changes what is signed."
    )


def others(found: Sequence[Entry]) -> list[Other]:
    """Return what was refused, but not because of who has sent it; the most frequent first."""
    kinds: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in found:
        if _type(entry) in NEXT and entry.request:
            kinds[entry.path, _type(entry)].append(entry)
    rows = [Other(len(alike), alike[0], NEXT[type_]) for (_, type_), alike in kinds.items()]
    return sorted(rows, key=lambda row: -row.many)[:_OTHERS]


def _type(entry: Entry) -> str:
    """Return the type of the error for which a request was refused; "": it was not."""
    return entry.error.partition(":")[0] if entry.state == REFUSED else ""


def _signed(entry: Entry) -> bool | None:
    """Tell whether a delivery was signed as its source demands; None: that is not known.

    What is refused later has an event already, if it has one.
    """
    if _type(entry) == Unverified.type:
        return False
    return entry.state != REFUSED or bool(entry.delivery.get("event")) or None


def _time(entries: Sequence[Entry]) -> str:
    return str(entries[0].delivery["received_at"]) if entries else ""

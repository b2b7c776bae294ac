"""The transitions of a claim that one request may cause."""

from __future__ import annotations

from gateway.answer import Answer
from gateway.claims.claim import Claim
from gateway.claims.late_results import LateResults, Read
from gateway.claims.store import Claims
from gateway.errors import Rejected, RequestError, Unroutable
from gateway.outcome import Outcome


class ClaimHandle:
    """A claim as one request uses it: it publishes for the claim, or waits for its task."""

    __slots__ = ("_claims", "_late", "_read", "claim")

    def __init__(self, claim: Claim, claims: Claims, late: LateResults, read: Read):
        self.claim = claim
        self._claims = claims
        self._late = late
        self._read = read

    @property
    def ours(self) -> bool:
        """Does this request own the claim, so that it publishes and writes what follows?"""
        return self.claim.ours

    @property
    def age(self) -> float:
        """The time since the first try in seconds."""
        return self.claim.age

    def publishing(self, deadline: float) -> None:
        """Renew the lease from now on, until `deadline` (monotonic seconds) at most."""
        self._claims.hold(self.claim, deadline)

    def not_published(self) -> None:
        """Release the claim, as nothing was sent: the next try publishes under its own task id."""
        if self.ours:
            self._claims.release(self.claim, certain=True)

    def unconfirmed(self, error: RequestError) -> None:
        """Release the claim, as `error` came instead of a confirm: the next try publishes."""
        if not self.ours:
            return
        # Only a returned message is surely not taken. A rejected one may be: when a queue crashes,
        # the broker also rejects messages that are in the queue after it has recovered.
        self._claims.release(self.claim, certain=isinstance(error, Unroutable))
        if not isinstance(error, (Rejected, Unroutable)):
            self.unattended()

    def confirmed(self) -> None:
        """Write that the broker has taken the message."""
        if self.ours:
            self._claims.confirm(self.claim)

    def unattended(self) -> None:
        """Let this process listen for the task's end, as the request no longer waits for it."""
        self._late.listen(self.claim, self._read)

    def ended(self, outcome: Outcome, given: Answer | None, final: bool) -> None:
        """Write the end of the task; `given` and `final` are from `Route.read` of `outcome`."""
        self._claims.settle(self.claim, outcome, given, final)


class NoClaim:
    """Used by a request without a claim: its transitions do nothing."""

    ours = False
    age = 0.0

    def publishing(self, deadline: float) -> None: ...
    def not_published(self) -> None: ...
    def unconfirmed(self, error: RequestError) -> None: ...
    def confirmed(self) -> None: ...
    def unattended(self) -> None: ...
    def ended(self, outcome: Outcome, given: Answer | None, final: bool) -> None: ...


NO_CLAIM = NoClaim()

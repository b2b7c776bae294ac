"""What one request does with the claim of its delivery: every transition that it may cause."""

from __future__ import annotations

from gateway.answer import Answer
from gateway.claims.claim import Claim
from gateway.claims.late_results import LateResults, Read
from gateway.claims.store import Claims
from gateway.errors import Rejected, RequestError, Unroutable
from gateway.outcome import Outcome


class ClaimHandle:
    """A claim in the hands of a request that publishes for it, or waits for whoever does."""

    __slots__ = ("_claims", "_late", "_read", "claim")

    def __init__(self, claim: Claim, claims: Claims, late: LateResults, read: Read):
        self.claim = claim
        self._claims = claims
        self._late = late
        self._read = read

    @property
    def ours(self) -> bool:
        """Is it for this request to publish, and to say what came of it?"""
        return self.claim.ours

    @property
    def age(self) -> float:
        """The seconds since the first try."""
        return self.claim.age

    def published(self, deadline: float) -> None:
        """The message is on its way; the lease lasts until `deadline` (monotonic) at most."""
        self._claims.hold(self.claim, deadline)

    def not_published(self) -> None:
        """Nothing was sent: the next try publishes, under any task id."""
        if self.ours:
            self._claims.release(self.claim, certain=True)

    def unconfirmed(self, error: RequestError) -> None:
        """`error` came instead of a confirm: the next try publishes."""
        if not self.ours:
            return
        # Whatever else it was, the broker may have taken the message: of a queue that crashes
        # it rejects also what is in there when that has come back.
        self._claims.release(self.claim, certain=isinstance(error, Unroutable))
        if not isinstance(error, (Rejected, Unroutable)):
            self.unattended()

    def confirmed(self) -> None:
        """The broker has taken the message."""
        if self.ours:
            self._claims.confirm(self.claim)

    def unattended(self) -> None:
        """The request waits no longer: this process goes on listening for the task's end."""
        self._late.listen(self.claim, self._read)

    def ended(self, outcome: Outcome, given: Answer | None, final: bool) -> None:
        """The task has ended; `given` and `final` are what the route makes of `outcome`."""
        self._claims.settle(self.claim, outcome, given, final)


class NoClaim:
    """What a request has that takes no claim: nothing comes of any transition."""

    ours = False
    age = 0.0

    def published(self, deadline: float) -> None: ...
    def not_published(self) -> None: ...
    def unconfirmed(self, error: RequestError) -> None: ...
    def confirmed(self) -> None: ...
    def unattended(self) -> None: ...
    def ended(self, outcome: Outcome, given: Answer | None, final: bool) -> None: ...


NO_CLAIM = NoClaim()

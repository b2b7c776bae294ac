"""The gateway's exceptions: one root class, and one class for each cause.

A class that ends a request carries the HTTP status of its answer and a stable
``type`` that senders and dashboards may rely on; its docstring is the text that
a sender reads when nothing more precise was given.
"""

from __future__ import annotations


class GatewayError(Exception):
    """Something went wrong in the gateway."""


class ConfigError(GatewayError):
    """The configuration cannot be used; ``problems`` has every problem that was found."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


class PluginError(GatewayError):
    """A strategy, a scheme or a command of another package cannot be used."""


class StoreError(GatewayError):
    """Redis has refused a command."""


class Unanswered(StoreError):
    """Redis does not answer: it is not known whether a command has taken effect."""


class RequestError(GatewayError):
    """The request cannot be answered."""

    status = 500
    type = "internal"
    #: Seconds after which the sender may try again; None: no Retry-After is sent.
    retry_after: int | None = None

    def __init__(self, detail: str | None = None, *, headers: dict[str, str] | None = None):
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.headers = headers or {}
        super().__init__(self.detail)


class BadRequest(RequestError):
    """The request is malformed."""

    status, type = 400, "bad-request"
    #: What metrics call it, if it is the reason why a sender is not verified.
    reason = "malformed"


class Unverified(RequestError):
    """The signature is missing or wrong, or its time is outside the tolerance."""

    status, type = 401, "unverified"
    #: What metrics call it.
    reason = "malformed"


class SignatureMissing(Unverified):
    """The signature is missing."""

    reason = "missing"


class SignatureMismatch(Unverified):
    """The signature does not match."""

    reason = "mismatch"


class OutOfTolerance(Unverified):
    """The timestamp is not within the tolerance."""

    reason = "timestamp"


class NotDecrypted(Unverified):
    """The message cannot be decrypted."""

    reason = "encryption"


class NotFound(RequestError):
    """No route has this path."""

    status, type = 404, "not-found"


class MethodNotAllowed(RequestError):
    """The route does not take this method."""

    status, type = 405, "method-not-allowed"


class BodyTooSlow(RequestError):
    """The body did not arrive in time."""

    status, type = 408, "body-too-slow"


class KeyConflict(RequestError):
    """This idempotency key was used with another body."""

    status, type = 409, "key-conflict"


class ResultExpired(RequestError):
    """The result has expired and is no longer kept."""

    status, type = 410, "result-expired"


class BodyTooLarge(RequestError):
    """The body is larger than this gateway accepts."""

    status, type = 413, "body-too-large"


class URITooLong(RequestError):
    """The URI is longer than this gateway accepts."""

    status, type = 414, "uri-too-long"


class EncodingNotAccepted(RequestError):
    """The body's Content-Encoding is not accepted; send it unencoded."""

    status, type = 415, "encoding-not-accepted"


class HeaderTooLarge(RequestError):
    """The header is larger than this gateway accepts."""

    status, type = 431, "header-too-large"


class TooMany(RequestError):
    """This source sends more than its rate limit allows."""

    status, type = 429, "too-many"

    def __init__(self, detail: str | None = None, *, after: int = 1):
        super().__init__(detail)
        self.retry_after = after


class TaskFailed(RequestError):
    """The task failed."""

    status, type = 502, "task-failed"


class ResultUnusable(RequestError):
    """The task's result cannot be an HTTP answer."""

    status, type = 502, "result-unusable"


class Unavailable(RequestError):
    """The delivery was not taken; try again."""

    status, type, retry_after = 503, "unavailable", 1


class NotConfirmed(Unavailable):
    """The broker did not confirm the message in time."""

    type = "not-confirmed"


class Rejected(Unavailable):
    """The broker refused the message: the queue is full, or has no leader."""

    type = "rejected"


class Unroutable(Unavailable):
    """The broker has no queue for the message."""

    type = "unroutable"


class BrokerUnavailable(Unavailable):
    """The broker cannot be reached."""

    type = "broker-unavailable"


class BrokerBlocked(Unavailable):
    """The broker is short of memory or disk and takes no messages."""

    type = "broker-blocked"


class ResultsUnavailable(Unavailable):
    """The result store cannot be reached."""

    type = "results-unavailable"


class StateUnavailable(Unavailable):
    """The store of claims cannot be reached, and a delivery must not be taken twice."""

    type = "state-unavailable"


class KeyNotKnown(Unavailable):
    """The public key of this sender is not known yet; it is being fetched."""

    type, retry_after = "key-not-known", 5


class Full(Unavailable):
    """The gateway has reached its limit of requests in flight, or of their bytes."""

    type = "full"


class QueueLimit(Unavailable):
    """The route has as many dynamic queues as its limit allows."""

    type = "queue-limit"


class DeadlinePassed(RequestError):
    """The task had no result by the deadline; it may still run."""

    status, type = 504, "deadline-passed"


class ResultsLost(RequestError):
    """The connection for the task's result was lost; the task may still run."""

    status, type = 504, "results-lost"


def cut_off(error: BaseException) -> None:
    """Drop the traceback of an error that was handled, and the errors that it came from.

    They lead to the frames that it has passed. Where one of these refers to the error again, as the
    owner of what has failed does, such a cycle keeps the request in memory until the garbage
    collector runs.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None

"""Dynamic queues: queues whose names have pointers, and which are declared on first use.

RabbitMQ deletes a queue that expires (``x-expires``) together with its messages, and confirms a
message that reaches the queue just then. So the times below make sure that a queue has no message
when it expires: messages that wait too long are moved to the route's static queue first.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gateway.config.pointers import MAX_NAME, pointers_in

if TYPE_CHECKING:
    from gateway.config.task import TaskSettings

#: Fractions of `queue_expires`: a message is published only so long after its queue was declared;
#: after so long without a message, nobody uses the queue; so long may a message wait in the queue.
RENEWED, IDLE, WAITING = 1 / 4, 1 / 4, 1 / 2

#: A pattern that can be matched in more ways is refused.
_MOST_STEPS = 100_000
_class_or_escape = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)

_OWN = ("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key")


def check_pattern(text: str) -> str:
    """Return `text`, or raise ValueError where it is no regular expression."""
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"is no regular expression: {exc}") from exc
    if _steps(text) > _MOST_STEPS:
        raise ValueError(
            "could be matched in too many ways, so that a sender could keep the gateway busy with "
            'it; repeat at most one part without a bound, as in "session-[a-z0-9]{1,32}"'
        )
    return text


def _steps(pattern: str) -> float:
    """Return about how many ways there are to match a name with `pattern`, at the most."""
    plain = _class_or_escape.sub("x", pattern)
    if re.search(r"\)[*+?{]", plain) or re.search(r"\\[1-9]|\(\?([=!(]|<[=!]|P=)", pattern):
        return math.inf  # what is repeated has parts itself, or looks elsewhere
    bounds = re.findall(r"([*+?])|\{(\d*)(,?)(\d*)\}", plain)
    ways = 1.0
    for sign, least, comma, most in bounds:
        if sign != "?" and (sign or comma):
            ways *= min(int(most or MAX_NAME), MAX_NAME) - int(least or 0) + 1
    return ways


def check(task: TaskSettings) -> None:
    """Raise ValueError where the settings of a dynamic queue do not fit together."""
    pointers = pointers_in(task.queue)
    own = {"queue_limit", "queue_expires", "static_queue"} & task.model_fields_set
    if task.queue_pattern is None:
        if pointers:
            raise ValueError(
                "queue_pattern: is needed with pointers in queue, or senders could make queues of "
                'any name; set it to what a name may be, as in "session-[a-z0-9]{1,32}"'
            )
        if own:
            raise ValueError(f"{min(own)}: is for a queue with pointers in its name; leave it out")
        return
    if not pointers:
        raise ValueError("queue_pattern: is for a queue with pointers in its name; leave it out")
    if task.queues is not None:
        raise ValueError("queues: `queue` has pointers and names all queues; leave out one of both")
    if task.queue_type != "classic":
        raise ValueError(
            "queue_type: a dynamic queue is classic, because declaring a quorum queue again does "
            "not renew its expiry; leave it out"
        )
    if not task.declare:
        raise ValueError("declare: dynamic queues are declared on first use; leave it out")
    if given := sorted(set(_OWN) & task.queue_arguments.keys()):
        raise ValueError(f"queue_arguments: {given[0]} of a dynamic queue follows queue_expires")
    if re.fullmatch(task.queue_pattern, task.static_queue):
        raise ValueError("static_queue: must not fit queue_pattern, as it does not expire")
    if (task.countdown or 0) >= task.queue_expires:
        raise ValueError(
            "countdown: has to be below queue_expires, while which the worker holds it"
        )


def arguments(task: TaskSettings) -> dict[str, str | int | bool]:
    """Return the arguments with which the dynamic queues of `task` are declared."""
    return {
        **task.queue_arguments,
        # The default of a virtual host may be another type, whose expiry is not renewed.
        "x-queue-type": "classic",
        "x-expires": int(1000 * task.queue_expires),
        "x-message-ttl": int(1000 * WAITING * task.queue_expires),
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": task.static_queue,
    }

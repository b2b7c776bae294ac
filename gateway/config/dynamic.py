"""Dynamic queues: queues whose names have pointers, and which are declared on first use.

RabbitMQ deletes a queue that expires (``x-expires``) together with its messages, and confirms a
message that reaches the queue just then. So the times below make sure that a queue has no message
when it expires: messages that wait too long are moved to the route's static queue first.
"""

from __future__ import annotations

import math
import re

from gateway.config.pointers import MAX_NAME

#: Fractions of `queue_expires`: a message is published only so long after its queue was declared;
#: after so long without a message, nobody uses the queue; so long may a message wait in the queue.
RENEWED, IDLE, WAITING = 1 / 4, 1 / 4, 1 / 2

#: A pattern that can be matched in more ways is refused.
_MOST_STEPS = 100_000
_class_or_escape = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


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

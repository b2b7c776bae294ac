"""A claim on a delivery, as it was found in Redis."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from gateway.answer import Answer

MINE, LAPSED, PUBLISHING, CONFIRMED, DONE = "mine", "lapsed", "publishing", "confirmed", "done"
#: What may have become of it since.
RELEASED, FAILED = "released", "failed"

#: Where those who joined a task hear that its claim was confirmed, done or released.
_CHANNEL = "gateway:claimed:"


@dataclass(slots=True)
class Claim:
    """A claim as it was found.

    ``state`` is `MINE`, `LAPSED` (and ours now), `PUBLISHING`, `CONFIRMED` or `DONE`, which has
    the ``answer``. ``owner`` names the try that looked, ``span`` is how long it and the sender's
    other tries take, ``age`` how long ago the first came, ``lease`` how long the state is to last.
    All of these are seconds.
    """

    key: str
    owner: str
    span: float
    state: str
    task_id: str
    digest: str
    age: float = 0.0
    tries: int = 1
    lease: float = 0.0
    answer: Answer | None = None

    @property
    def ours(self) -> bool:
        """Is it for this try to publish, and to say what came of it?"""
        return self.state in (MINE, LAPSED)

    @property
    def channel(self) -> str:
        """The channel on which the claim's next states are told."""
        return _CHANNEL + self.task_id


def dump(given: Answer) -> str:
    """Write an answer as text."""
    body = base64.b64encode(given.body).decode()
    return json.dumps([given.status, given.content_type, body, given.headers])


def load(text: bytes) -> Answer:
    """Read what `dump` has written."""
    status, content_type, body, headers = json.loads(text)
    return Answer(status, content_type, base64.b64decode(body), headers)

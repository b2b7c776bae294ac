"""What a simulation notes: what senders were told, and what workers did."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from tests.simulation.loop import RUNNING, Party

#: Faults in which Redis loses what it has confirmed.
FORGETFUL = {"killed, losing a second", "promoted"}
#: What became of a try whose sender did not wait, whose connection ended, or was not made.
GONE, RESET, REFUSED, SILENT = "gone", "reset", "refused", "silent"


@dataclass(slots=True)
class Try:
    """One request and what became of it; times are the loop's seconds.

    ``at`` is when its header was sent, or the answer before it on its connection had come.
    """

    delivery: str
    number: int
    route: str
    gateway: str
    at: float
    seconds: float = 0.0  # that its task takes
    answered: float = 0.0
    status: int | str = 0
    type: str = ""
    detail: str = ""
    task: str = ""
    body: str = ""
    location: str = ""
    reused: bool = False  # its connection had had another request, so it may just be being closed
    idle: float = 0.0  # seconds for which its connection had no request
    failing: bool = False  # its task may fail
    hasty: bool = False  # its sender tries three times only
    query: str = ""
    delay: float = 0.0  # seconds for which the machine held it up

    @property
    def id(self) -> str:
        return f"{self.delivery}.{self.number}"

    @property
    def good(self) -> bool:
        return type(self.status) is int and 200 <= self.status <= 299

    @property
    def took(self) -> float:
        return self.answered - self.at


@dataclass(slots=True)
class Execution:
    """A task that a worker has run to its end, or whose end it has lost."""

    delivery: str
    task_id: str
    attempt: str  # the id of the try that published it
    nonce: str
    failed: bool
    redelivered: bool
    at: float
    worker: str
    name: str  # of the task
    lost: bool = False  # it was acknowledged early, and its worker died
    stored: float = inf  # when its result was stored, or replied only


@dataclass(slots=True)
class Published:
    """A message that a person's process has published, under ``task_id``, to run a delivery again.

    ``entry`` is its id in the journal, and ``before`` the task that it had. ``taken`` is what the
    process was told by the broker; None: nothing. ``ended`` is when, and ``by`` is the process.
    """

    task_id: str
    entry: str
    before: str
    attempt: str
    at: float
    by: Party
    taken: bool | None = None
    ended: float = inf
    beside: bool = False  # another living process was just publishing it

    def is_under_way(self) -> bool:
        return self.ended == inf and self.by.state == RUNNING


@dataclass(slots=True)
class Replayed:
    """What a person was told about a replay: its task, and what was in the way."""

    entry: str
    task_id: str
    problem: str
    began: float
    ended: float


@dataclass(slots=True)
class Injected:
    """A fault: `what` has happened to `target` (a process or "a>b", a link)."""

    kind: str
    target: str
    began: float
    ended: float
    detail: str = ""

    def overlaps(self, since: float, until: float) -> bool:
        return self.began <= until and since <= self.ended

    def __str__(self) -> str:
        return f"{self.target} {self.kind} {self.detail} {self.began:.2f}-{self.ended:.2f}"


@dataclass
class Evidence:
    """All that the rules judge."""

    strategy: str
    seed: int
    calm: bool = True
    ready: float = 0.0  # since when everything serves
    tries: list[Try] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    #: Dead letters: the delivery, and the task's name.
    dead: set[tuple[str, str]] = field(default_factory=set)
    injected: list[Injected] = field(default_factory=list)
    #: Gateways of which a process has drained, and when it ended.
    ended: list[tuple[str, float]] = field(default_factory=list)
    #: The text of results that were read at a result's URL, with the task, by delivery.
    read: list[tuple[str, str]] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    replays: list[Replayed] = field(default_factory=list)
    #: What went wrong in a process: unhandled exceptions, critical log lines.
    logged: list[str] = field(default_factory=list)
    #: What was still held, or not ended, in words.
    left: list[str] = field(default_factory=list)

    @property
    def last_fault(self) -> float:
        return max((one.ended for one in self.injected), default=self.ready)

"""The contract of every store of the journal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NamedTuple, Self

from gateway.config.settings import Config
from gateway.journal.entry import REFUSED, End, Entry
from gateway.journal.filter import ALL, Filter
from gateway.journal.groups import About, Group

#: What an entry's position matches; it may be empty. Positions are compared as two numbers.
POSITION = r"^([0-9]{1,15}-[0-9]{1,15})?$"

#: Milliseconds after a delivery is written, or a replay of it has ended, until the first look for
#: the end of its task.
FIRST_LOOK = 1_000

#: Minutes for which routes' shares of failures are reckoned, and answers below which they are not.
MINUTES, LEAST = 10, 20

#: How a delivery was answered, as texts: status (empty: not yet), seconds, seconds until its
#: message was published, error, attempts; the last three are empty where there are none.
Answered = tuple[str, str, str, str, str]
NOT_ANSWERED: Answered = ("", "", "", "", "")

#: A delivery to be written: id, state, 1 if the end of its task is to be looked for, task id; the
#: five of `Answered`; what never changes, as `gateway.journal.entry.described` has it (empty: it is
#: there already, and so is its call), call. A plain tuple, as there is one for each request.
Row = tuple[str, str, int, str, str, str, str, str, str, str, bytes]


class Refusal(NamedTuple):
    """A request without a message, *refused* or *ignored*; ``about`` and ``call`` as in a `Row`."""

    id: str
    about: str
    call: bytes
    status: int
    seconds: float
    error: str
    state: str = REFUSED


#: How a replay is begun, or what is in its way: one that is being published, one that has not ended
#: within the time that this takes, or one that has.
BEGUN, UNDER_WAY, INTERRUPTED, RUN = "begun", "under way", "interrupted", "run"


class Begun(NamedTuple):
    """One of the above, and the task of that replay; "": there is no such delivery."""

    how: str
    task_id: str


class Size(NamedTuple):
    """What `JournalStore.trim` has ``removed``, and which deliveries with a message are left.

    ``waiting`` are those that are not archived since they have changed, ``lag`` the seconds since
    the first of these changes, ``missed`` those that were removed before they were archived.
    """

    removed: int
    deliveries: int
    open: int
    bytes: int
    waiting: int = 0
    lag: float = 0.0
    missed: int = 0


class Change(NamedTuple):
    """A delivery that has changed, as it is now (None: it is gone); ``mark`` stands for that."""

    id: str
    mark: bytes
    entry: Entry | None


class Failing(NamedTuple):
    """A delivery that has failed, and is not counted; ``ms`` since the epoch is when it has.

    ``about`` is what its group has in common; None: it has none, as it is gone or runs again.
    """

    id: str
    ms: int
    about: About | None


class JournalStore(ABC):
    """Keeps the entries of the journal.

    A gateway makes one for each process, from `start` to `stop`; a command, or a request to the
    API, uses one that `opened` yields. An implementation has these duties:

    - It keeps the last deliveries: at most `Config.journal`, with at most `Config.journal_bytes`
      together, but at least one, and each for `Config.journal_age`. It also keeps the last
      `Config.most_apart` requests without a message, for the same time; these never displace
      deliveries.
    - Each method is atomic, also beside the other processes of the deployment. Other deployments,
      which have another `Config.prefix`, see nothing of it.
    - A state is only replaced by one further on: *received*, then *refused*, *accepted* or
      *replayed*, then *running*, then an end. Only `end_replay` goes back. What became of a late
      answer replaces *succeeded* and those states after which a task may run.
    - A delivery is open if the end of its task is to be looked for, until `write` has written an
      end, or `settle` one that counts. What the bounds remove is not open any more.
    - Each change is announced by `changes`. With `Config.archive_url` the store remembers that it
      is not archived, until `archived` says so, or the bounds remove the delivery.
    - A delivery that fails is remembered until `count` has added it to its group, each time that it
      fails. Groups are not removed with their deliveries: those that have failed last are kept.
    - Ages, looks and positions are by one clock, the store's.
    - No method blocks. What is called first takes effect first, also if it is awaited later. `stop`
      waits for that as well.
    - Each fails with a `GatewayError` where the store does not answer in time or refuses; only
      `check` raises what its `run` does, by which `gateway check` finds the remedy.
    - Of a store that was started, `write` and `refuse` are `Unanswered` where it does not answer.
      They may then be called again with the same.
    """

    def __init__(self, config: Config):  # noqa: B027
        """Open nothing."""

    @classmethod
    @abstractmethod
    def opened(cls, config: Config) -> AbstractAsyncContextManager[Self]:
        """Connect for one command; errors name the store's URL and the remedy."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to connect; a store that does not answer is waited for in the background."""

    @abstractmethod
    async def stop(self) -> None:
        """Wait for what is being written, for a second or so, and disconnect."""

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> Awaitable[bytes | None]:
        """Write deliveries: how each has begun, how it was answered, or both; keep the bounds.

        It is called for each batch: a future costs less than a coroutine, which becomes a task.
        A delivery that was replayed meanwhile keeps what is known of the replay's task, and one
        whose task has failed meanwhile keeps its error. One that is
        not there and has no `about` is left out, as the bounds have removed it. Return in UTF-8 why
        changes could not be announced, where all is written nevertheless, else None.
        """

    @abstractmethod
    def refuse(self, refusal: Refusal) -> Awaitable[None]:
        """Write a request without a message; keep their bound."""

    @abstractmethod
    async def due(self, number: int, first: int, longest: int) -> list[tuple[str, str]]:
        """Return id and task id of open deliveries whose look is due, at most `number`.

        Postpone their next look: after the nth, by ``first * 2**n`` ms, but at most by `longest`.
        """

    @abstractmethod
    def settle(
        self, delivery_id: str, task_id: str, end: End, counts: bool = True
    ) -> Awaitable[bytes | None]:
        """Write what became of a delivery's task, unless it has another task or end by now.

        `end` may be *running* as well; the time of that, and of a late answer's end, is written,
        too. A caller that `counts` ends is told how the request of an
        open delivery was answered, once for each task that has ended, in UTF-8: ``accepted`` with a
        2xx, which is also said of a replay, ``error``, or ``unknown`` if the answer is not written
        (yet). Otherwise, the result is None.
        """

    @abstractmethod
    async def begin_replay(
        self, delivery_id: str, task_id: str, before: str, again: bool = False
    ) -> Begun:
        """Write that a delivery is about to be published as `task_id`, if its task is `before`.

        With `again` one that was interrupted begins again, as the task that it was.
        """

    @abstractmethod
    async def end_replay(
        self,
        delivery_id: str,
        task_id: str,
        taken: bool | None,
        runs: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write how the replay that has begun as `task_id` has ended, if it has not yet.

        None: it is not known whether the broker has taken it, so it is interrupted from now on.

        If the broker has `taken` the task, it is the delivery's from now on, which is open again in
        the state *replayed*, without error and attempts, has been replayed once more, and its
        `runs` are these.
        """

    @abstractmethod
    async def get(self, delivery_id: str) -> Entry | None:
        """Return one entry by its id, in a time that does not depend on the number of entries."""

    @abstractmethod
    def entries(
        self,
        calls: bool,
        wanted: Filter = ALL,
        before: str = "",
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries, the newest first, with their positions; `calls`: with their calls.

        All that `wanted` takes, of the time that it says, and some others; with `before`, instead
        of its `until`, those that are older than the one with this position. Requests without a
        message have their place among deliveries. What is removed meanwhile is left out.
        """

    @abstractmethod
    def changes(self) -> AsyncGenerator[str, None]:
        """Yield the id of each entry that is written or changed from now on, until closed.

        The first one is empty: from then on nothing is missed. It uses a connection of its own, and
        raises `GatewayError` where that cannot be made, or is lost.
        """

    @abstractmethod
    async def trim(self, most: int) -> Size:
        """Remove what is older than `Config.journal_age`, at most `most` of each kind."""

    @abstractmethod
    async def changed(self, number: int, most_bytes: int, age: float) -> list[Change]:
        """Return deliveries, with calls, that are not archived, the first change first.

        At most `number`, with about `most_bytes`, and only those whose last change is `age` seconds
        ago.
        """

    @abstractmethod
    async def archived(self, changes: Sequence[Change]) -> None:
        """Write that these changes are archived; what has changed since then is not."""

    @abstractmethod
    async def unarchived(self, number: int) -> list[str]:
        """Return the ids of at most `number` deliveries that are not archived since they changed.

        Some of them may be gone.
        """

    @abstractmethod
    def unmarked(self, number: int) -> AsyncGenerator[list[str], None]:
        """Yield the ids of all other entries, about the newest first, at most `number` at once.

        Some of them may be gone.
        """

    @abstractmethod
    async def mark(self, ids: Sequence[str]) -> None:
        """Write that these deliveries are not archived."""

    @abstractmethod
    async def there(self, ids: Sequence[str]) -> set[str]:
        """Return those of the `ids` whose deliveries are in the journal."""

    @abstractmethod
    async def erase(self, entry: Entry) -> bool:
        """Remove a delivery, which `entries` or `get` has returned; tell whether it was there."""

    @abstractmethod
    async def failing(self, process: str, seconds: float, number: int) -> list[Failing] | None:
        """Return at most `number` deliveries that are not counted, the first one first.

        None where another process counts. `process` is the one that does from now on, for
        `seconds`.
        """

    @abstractmethod
    async def count(self, failing: Sequence[Failing], news: bool) -> int:
        """Add deliveries to their groups, each once; return how many were added.

        With `news` it is noted what there is to be told: ``new GROUP``, ``grown GROUP`` (tenfold),
        ``again GROUP`` (it was resolved).
        """

    @abstractmethod
    async def groups(self) -> list[Group]:
        """Return all groups, the one that has failed last first."""

    @abstractmethod
    async def change_group(self, group: str, muted: datetime | None) -> bool:
        """Mute a group until then, or say that it is resolved (None); False: there is none."""

    @abstractmethod
    async def forget_group(self, group: str) -> bool:
        """Remove a group; tell whether it was there."""

    @abstractmethod
    async def rates(
        self, share: float | None, answered: Mapping[str, int], failed: Mapping[str, int]
    ) -> dict[str, tuple[int, int]]:
        """Add to the numbers of the last `MINUTES`; return by route how many were answered, failed.

        ``share ROUTE`` is news where the failed ones pass `share`, with `LEAST` answers or more.
        """

    @abstractmethod
    async def news(self, number: int, seconds: float) -> list[str]:
        """Return at most `number` news of the last `seconds`, unless there is a pause."""

    @abstractmethod
    async def told(self, news: Sequence[str], pause: float, problem: str = "") -> None:
        """Remove `news`, and return no others for `pause` seconds; `problem`: none were sent."""

    @abstractmethod
    async def untold(self) -> str:
        """Return why the last message could not be sent, during the pause after it; "": it was."""

    @abstractmethod
    async def check(self) -> None:
        """Try for `gateway check` to write, to another journal, which is removed again."""

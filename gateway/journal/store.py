"""The journal's store: the deliveries in Redis, and every command that is sent for them."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, Self

from gateway.clock import monotonic
from gateway.config.settings import REFUSED_BYTES, Config
from gateway.errors import StoreError
from gateway.journal import scripts
from gateway.journal.entry import (
    LATE,
    RECEIVED,
    REFUSED,
    RUNNING,
    End,
    Entry,
    iso_now,
    ms_of,
    stored,
)
from gateway.journal.filter import ALL, Filter
from gateway.journal.group_store import GroupStore
from gateway.journal.pages import PAGE, sought
from gateway.journal.reading import Reader
from gateway.journal.scripts import Keys
from gateway.stores import result_store
from gateway.stores.pipeline import ASKING
from gateway.stores.result_store import Ask
from gateway.stores.state_store import StateStore

#: What an entry's position matches; it may be empty. Positions are compared as two numbers.
POSITION = r"^([0-9]{1,15}-[0-9]{1,15})?$"

#: Milliseconds after a delivery is written, or a replay of it has ended, until the first look for
#: the end of its task.
FIRST_LOOK = 1_000

#: How a delivery was answered, as texts: status (empty: not yet), seconds, seconds until its
#: message was published, error, attempts; the last three are empty where there are none.
Answered = tuple[str, str, str, str, str]
NOT_ANSWERED: Answered = ("", "", "", "", "")

#: A delivery to be written: id, state, 1 if the end of its task is to be looked for, task id; the
#: five of `Answered`; the two texts of `gateway.journal.entry.described`, and its call (all are
#: empty: they are there already). A plain tuple, as there is one for each request.
Row = tuple[str, str, int, str, str, str, str, str, str, str, str, bytes]


class Refusal(NamedTuple):
    """A request without a message, *refused* or *ignored*; ``about`` and ``call`` as in a `Row`."""

    id: str
    about: str
    call: bytes
    status: int
    seconds: float
    error: str
    state: str = REFUSED


#: How a replay is begun, or what is in its way: another replay, which is being published, was
#: interrupted (it has not ended within the time that this takes), or has run.
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
    """A delivery that has changed, as it is now; ``mark`` stands for that.

    Without an ``entry`` it cannot be read, or is ``gone``.
    """

    id: str
    mark: bytes
    entry: Entry | None
    gone: bool


_SILENCE = 15.0  # seconds without a change after which Redis is asked whether it is there
#: Deliveries a query, and bytes of their calls: with more, the other clients of Redis would wait.
_PAGE, _CALLS = 100, 262_144
_LOOKED = 250  # deliveries that a query looks at, where not all are looked for
_ENDING = 2.0  # seconds for a replay beside those until it is confirmed
#: An entry's id, state, task id, and how often it was replayed.
Version = tuple[str, str, str, str]


class JournalStore(GroupStore, Reader):
    """Keeps the entries of the journal in the Redis of the claims, 6.2 or newer.

    - It keeps the last deliveries: at most `Config.journal`, with at most `Config.journal_bytes`
      together, but at least one, and each for `Config.journal_age`. It also keeps the last
      `Config.most_without_message` requests without a message, for the same time; these never
      displace deliveries.
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
    - Ages, looks and positions are by Redis' clock.
    - No method blocks. What is called first takes effect first, also if it is awaited later.
    - Each fails as `run` does where Redis does not answer in time or refuses. With the `run` of a
      `StateStore`, `write` and `refuse` are `Unanswered` where Redis does not answer. They may then
      be called again with the same.

    `run` sends a command and returns an awaitable of the reply. A gateway makes one store for each
    process; a command, or a request to the API, uses one that `opened` yields. `part`: see `Keys`.
    """

    def __init__(self, config: Config, run: Ask, part: str = ""):
        self._config, self._run = config, run
        self._keys = keys = Keys(config, part)
        # What each script gets last.
        self._last = (keys.prefix, keys.changes, int(bool(config.archive_url)))
        self.keep_bodies = config.keep_bodies
        self._drops = int(self.keep_bodies == "failed")
        self._age = int(config.journal_age * 1000)  # ms

    @classmethod
    @asynccontextmanager
    async def opened(cls, config: Config) -> AsyncIterator[Self]:
        """Connect for one command; errors name the store's URL and the remedy."""
        async with StateStore.opened(config) as store:
            yield cls(config, result_store.remedied(config, config.state, store.run))

    def _eval(self, script: str, *arguments: Any) -> Awaitable[Any]:
        """Run one of `scripts`."""
        return self._call(script, self._keys.all, *arguments, *self._last)

    def write(self, rows: Sequence[Row]) -> Awaitable[bytes | None]:
        """Write deliveries: how each has begun, how it was answered, or both; keep the bounds.

        It is called for each batch: a future costs less than a coroutine, which becomes a task.
        A delivery that was replayed meanwhile keeps what is known of the replay's task, and one
        whose task has failed meanwhile keeps its error. One that is not there and has no `about` is
        left out, as the bounds have removed it. Return in UTF-8 why changes could not be announced,
        where all is written nevertheless, else None.
        """
        bounds = (self._config.journal, self._config.journal_bytes, self._age)
        each = chain.from_iterable(rows)
        return self._eval(scripts.WRITE, *bounds, FIRST_LOOK, self._drops, *each)

    def refuse(self, refusal: Refusal) -> Awaitable[None]:
        """Write a request without a message; keep their bound."""
        return self._eval(
            scripts.REFUSE, refusal.id, self._config.most_without_message, self._age, refusal.state,
            "about", refusal.about, "call", refusal.call, "task_id", "", "status", refusal.status,
            "seconds", f"{refusal.seconds:.6f}", "error", refusal.error,
        )  # fmt: skip

    async def due(self, number: int, first: int, longest: int) -> list[tuple[str, str]]:
        """Return id and task id of open deliveries whose look is due, at most `number`.

        Postpone their next look: after the nth, by ``first * 2**n`` ms, but at most by `longest`.
        """
        found = await self._eval(scripts.DUE, number, first, longest)
        return [(delivery_id.decode(), task_id.decode()) for delivery_id, task_id in found]

    def settle(
        self, delivery_id: str, task_id: str, end: End, counts: bool = True
    ) -> Awaitable[bytes | None]:
        """Write what became of a delivery's task, unless it has another task or end by now.

        `end` may be *running* as well; the time of that, and of a late answer's end, is written,
        too. A caller that `counts` ends is told how the request of an open delivery was answered,
        once for each task that has ended, in UTF-8: ``accepted`` with a 2xx, which is also said of
        a replay, ``error``, or ``unknown`` if the answer is not written (yet). Otherwise, the
        result is None.
        """
        ended = end.state not in (RUNNING, *LATE)
        fields = ["error", end.error] if end.error else []
        if end.attempts:
            fields += ["attempts", str(end.attempts)]
        name = "begun_at" if end.state == RUNNING else "ended_at" if ended else "late_at"
        fields += [name, iso_now()]
        own = (delivery_id, task_id, end.state, int(ended and counts), self._drops)
        return self._eval(scripts.SETTLE, *own, *fields)

    async def begin_replay(
        self, delivery_id: str, task_id: str, before: str, again: bool = False
    ) -> Begun:
        """Write that a delivery is about to be published as `task_id`, if its task is `before`.

        With `again` one that was interrupted begins again, as the task that it was.
        """
        lasts = int((self._config.confirm_timeout + _ENDING) * 1000)
        about = (delivery_id, task_id, before, int(again), lasts)
        found = await self._eval(scripts.BEGIN_REPLAY, *about)
        return Begun(*(str(each, "utf-8") for each in found))

    async def end_replay(
        self,
        delivery_id: str,
        task_id: str,
        taken: bool | None,
        runs: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        """Write how the replay that has begun as `task_id` has ended, if it has not yet.

        None: it is not known whether the broker has taken it, so it is interrupted from now on.
        False: the store has lost that it has begun.

        If the broker has `taken` the task, it is the delivery's from now on, which is open again in
        the state *replayed*, without error and attempts, has been replayed once more, and its
        `runs` are these.
        """
        end = "" if taken is None else int(taken)
        about = (delivery_id, task_id, end, FIRST_LOOK, json.dumps(runs))
        return bool(await self._eval(scripts.END_REPLAY, *about))

    async def get(self, delivery_id: str) -> Entry | None:
        """Return one entry by its id, in a time that does not depend on the number of entries."""
        return stored(delivery_id, await self._run("HGETALL", self._keys.of(delivery_id)))

    async def entries(
        self, calls: bool, wanted: Filter = ALL, before: str = ""
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries, the newest first, with their positions; `calls`: with their calls.

        All that `wanted` takes, of the time that it says, and some others; with `before`, instead
        of its `until`, those that are older than the one with this position. Requests without a
        message have their place among deliveries. What is removed meanwhile is left out.
        """
        which = sought(wanted)
        newest = f"({before}" if before else str(ms_of(wanted.until)) if wanted.until else "+"
        oldest = str(ms_of(wanted.since)) if wanted.since else "-"
        most, some = _LOOKED if any(which) else _PAGE, _CALLS if calls else 0
        about = (most, _PAGE, some, REFUSED_BYTES, *which)
        while page := await self._eval(PAGE, newest, oldest, *about):
            for position, flat in page:
                if (entry := stored("", flat, position.decode())) is not None:
                    yield entry
            newest = f"({page[-1][0].decode()}"

    async def find(
        self, wanted: Filter, before: str = "", patience: float = math.inf
    ) -> AsyncGenerator[Entry, None]:
        end, self.reached = monotonic() + patience, ""
        async with aclosing(self.entries(bool(wanted.text), wanted, before)) as entries:
            async for entry in entries:
                if wanted.takes(entry):
                    yield replace(entry, call=b"")
                if monotonic() > end:
                    self.reached = entry.position
                    return

    async def changes(self) -> AsyncGenerator[str, None]:
        """Yield the id of each entry that is written or changed from now on, until closed.

        The first one is empty: from then on nothing is missed. It uses a connection of its own, and
        raises `GatewayError` where that cannot be made, or is lost.
        """
        client = result_store.connect(self._config, self._config.state, state=True)
        messages = client.messages(self._keys.changes, ASKING, _SILENCE)
        try:
            async with aclosing(messages):
                async for message in messages:
                    yield message.decode().partition(" ")[0] if message else ""
        except StoreError as exc:
            raise result_store.no_answer(self._config, self._config.state, exc) from exc

    async def trim(self, most: int) -> Size:
        """Remove what is older than `Config.journal_age`, at most `most` of each kind."""
        found = await self._eval(scripts.TRIM, self._age, most)
        removed, deliveries, unfinished, size, waiting, lag, missed = found
        return Size(removed, deliveries, unfinished, int(size), waiting, float(lag), int(missed))

    async def changed(self, number: int, most_bytes: int, age: float) -> list[Change]:
        """Return deliveries, with calls, that are not archived, the first change first.

        At most `number`, with about `most_bytes`, and only those whose last change is `age` seconds
        ago.
        """
        found = await self._eval(scripts.CHANGED, number, most_bytes, int(age * 1e6))
        changes = []
        for delivery_id, mark, flat in found:
            which = delivery_id.decode()
            changes.append(Change(which, mark, stored(which, flat), not flat))
        return changes

    async def archived(self, changes: Sequence[Change]) -> None:
        """Write that these changes are archived; what has changed since then is not."""
        each = ((change.id, change.mark, int(change.gone)) for change in changes)
        await self._eval(scripts.ARCHIVED, *chain.from_iterable(each))

    async def unarchived(self, number: int) -> list[str]:
        """Return the ids of at most `number` deliveries that are not archived since they changed.

        Some of them may be gone.
        """
        found = await self._run("ZRANGE", self._keys.changed, 0, number - 1)
        return [each.decode() for each in found]

    async def unmarked(self, number: int) -> AsyncGenerator[list[Version], None]:
        """Yield all other entries, about the newest first, at most `number` at once."""
        for stream in (1, 2):
            newest = "+"
            while newest:
                last, found = await self._eval(scripts.UNMARKED, stream, newest, number)
                texts = ([field.decode(errors="replace") for field in each] for each in found)
                yield [(which, state, task, replays) for which, state, task, replays in texts]
                newest = last and f"({last.decode()}"

    async def mark(self, ids: Sequence[str]) -> None:
        """Write that these deliveries are not archived."""
        await self._eval(scripts.MARK, *ids)

    async def there(self, ids: Sequence[str]) -> set[str]:
        """Return those of the `ids` whose deliveries are in the journal."""
        bits = await self._eval(scripts.THERE, *ids)
        return {each for each, bit in zip(ids, bits.decode(), strict=True) if bit == "1"}

    async def erase(self, entry: Entry) -> bool:
        """Remove a delivery, which `entries` or `get` has returned; tell whether it was there."""
        return bool(await self._eval(scripts.ERASE, entry.id, entry.position))

    async def check(self) -> None:
        """Write two deliveries to a journal of one, as the account may lack a permission."""
        bounds = {"journal": 1, "journal_bytes": 1_000, "journal_age": 1.0}
        config = self._config.model_copy(update=bounds)
        tried = JournalStore(config, self._run, f"check-{secrets.token_hex(8)}:")
        ids, keys = ("1", "2"), tried._keys
        try:
            unannounced = await tried.write(
                [(each, RECEIVED, 1, "task", *NOT_ANSWERED, "{}", "", b"[]") for each in ids]
            )
        finally:
            await self._run("DEL", *keys.all, *map(keys.of, ids))
        if unannounced:
            raise StoreError(unannounced.decode())

"""The journal's store: the deliveries in Redis, and every command that is sent for them."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple, Self

from gateway.clock import monotonic, time
from gateway.config.settings import REFUSED_BYTES, Config
from gateway.errors import GatewayError, StoreError
from gateway.journal import group_scripts, scripts
from gateway.journal.entry import (
    DAMAGED,
    LATE,
    RECEIVED,
    REFUSED,
    RUNNING,
    End,
    Entry,
    checked,
    iso_now,
    known,
    order,
)
from gateway.journal.filter import ALL, Filter
from gateway.journal.groups import DAY, HOUR, MOST, About, Group, group_of
from gateway.journal.pages import PAGE, sought
from gateway.journal.reading import Reader
from gateway.stores import result_store, state_store
from gateway.stores.pipeline import ASKING
from gateway.stores.result_store import Ask
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

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
    """A delivery that has changed, as it is now; ``mark`` stands for that.

    Without an ``entry`` it cannot be read, or is ``gone``.
    """

    id: str
    mark: bytes
    entry: Entry | None
    gone: bool


class Failing(NamedTuple):
    """A delivery that has failed, and is not counted; ``ms`` since the epoch is when it has.

    ``about`` is what its group has in common; None: it has none, as it is gone or runs again.
    """

    id: str
    ms: int
    about: About | None


_SILENCE = 15.0  # seconds without a change after which Redis is asked whether it is there
#: Deliveries a query, and bytes of their calls: with more, the other clients of Redis would wait.
_PAGE, _CALLS = 100, 262_144
_LOOKED = 250  # deliveries that a query looks at, where not all are looked for
_ENDING = 2.0  # seconds for a replay beside those until it is confirmed
_GROUPS = 100  # groups a query


class Keys:
    """The keys of one deployment; `scripts` and `group_scripts` say what they have.

    With `part`, which ends with a colon, they are those of another journal with the same channel.
    """

    def __init__(self, config: Config, part: str = ""):
        # In a cluster the whole journal is on one node, by the tag in braces.
        prefix = f"{config.prefix}{{journal}}:"
        self.changes = f"{prefix}changes"
        prefix += part
        self.deliveries = f"{prefix}deliveries"
        self.refused = f"{prefix}refused"
        self.open = f"{prefix}open"
        self.bytes = f"{prefix}bytes"
        self.failing = f"{prefix}failing"
        self.changed = f"{prefix}changed"
        self.missed = f"{prefix}missed"
        self.absent = f"{prefix}absent"
        self.counts = f"{prefix}counts"
        self.groups = f"{prefix}groups"
        self.news = f"{prefix}news"
        self.told = f"{prefix}told"
        self.rates = f"{prefix}rates"
        #: What the key of each delivery begins with.
        self.prefix = f"{prefix}delivery:"
        #: What the key of each group begins with.
        self.group = f"{prefix}group:"
        #: Those that each script gets (`scripts.script`).
        self.all = (
            self.deliveries, self.refused, self.open, self.bytes, self.failing, self.changed,
            self.missed, self.absent,
        )  # fmt: skip

    def of(self, delivery_id: str) -> str:
        return self.prefix + delivery_id


#: An entry's id, state, task id, and how often it was replayed.
Version = tuple[str, str, str, str]


class JournalStore(Reader):
    """Keeps the entries of the journal in the Redis of the claims, 6.2 or newer.

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
    - Ages, looks and positions are by Redis' clock.
    - No method blocks. What is called first takes effect first, also if it is awaited later. `stop`
      waits for that as well.
    - Each fails with a `GatewayError` where Redis does not answer in time or refuses; only
      `check` raises what its `run` does, by which `gateway check` finds the remedy.
    - Of a store that was started, `write` and `refuse` are `Unanswered` where Redis does not
      answer. They may then be called again with the same.

    A gateway makes one for each process, from `start` to `stop`; a command, or a request to the
    API, uses one that `opened` yields. `run` sends a command and returns an awaitable of the reply.
    Without it, this store's own connection does that, between `start` and `stop`, and returns
    futures. `part`: see `Keys`.
    """

    def __init__(self, config: Config, run: Ask | None = None, part: str = ""):
        self._config = config
        self._keys = Keys(config, part)
        self._store = StateStore(config, "journal")
        self._given = run
        keys = self._keys
        # What each script gets last.
        self._last = (keys.prefix, keys.changes, int(bool(config.archive_url)))
        self._drops = int(config.keep_bodies == "failed")
        self._age = int(config.journal_age * 1000)  # ms

    @classmethod
    @asynccontextmanager
    async def opened(cls, config: Config) -> AsyncIterator[Self]:
        """Connect for one command; errors name the store's URL and the remedy."""
        async with state_store.asking(config) as ask:
            yield cls(config, ask)

    async def start(self) -> None:
        """Begin to connect; a store that does not answer is waited for in the background."""
        await self._store.start()

    async def stop(self) -> None:
        """Wait for what is being written, for a second or so, and disconnect."""
        await self._store.stop()

    @property
    def _run(self) -> Ask:
        return self._given or self._store.run

    def _eval(self, script: str, *arguments: Any) -> Awaitable[Any]:
        """Run one of `scripts`."""
        keys = self._keys.all
        return self._run("EVAL", script, len(keys), *keys, *arguments, *self._last)

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
            scripts.REFUSE, refusal.id, self._config.most_apart, self._age, refusal.state,
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
        return _read(delivery_id, await self._run("HGETALL", self._keys.of(delivery_id)))

    async def entries(
        self, calls: bool, wanted: Filter = ALL, before: str = ""
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries, the newest first, with their positions; `calls`: with their calls.

        All that `wanted` takes, of the time that it says, and some others; with `before`, instead
        of its `until`, those that are older than the one with this position. Requests without a
        message have their place among deliveries. What is removed meanwhile is left out.
        """
        which = sought(wanted)
        newest = f"({before}" if before else str(_ms(wanted.until)) if wanted.until else "+"
        oldest = str(_ms(wanted.since)) if wanted.since else "-"
        most, some = _LOOKED if any(which) else _PAGE, _CALLS if calls else 0
        about = (most, _PAGE, some, REFUSED_BYTES, *which)
        while page := await self._eval(PAGE, newest, oldest, *about):
            for position, flat in page:
                if (entry := _read("", flat, position.decode())) is not None:
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
        messages = self._store.connect().messages(self._keys.changes, ASKING, _SILENCE)
        try:
            async with aclosing(messages):
                async for message in messages:
                    yield message.decode().partition(" ")[0] if message else ""
        except StoreError as exc:
            url = result_store.without_password(self._config.state)
            raise GatewayError(f"{url}: {exc}") from exc

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
            changes.append(Change(which, mark, _read(which, flat), not flat))
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

    async def failing(self, process: str, seconds: float, number: int) -> list[Failing] | None:
        """Return at most `number` deliveries that are not counted, the first one first.

        None where another process counts. `process` is the one that does from now on, for
        `seconds`.
        """
        keys = self._keys
        found = await self._run(
            "EVAL", group_scripts.FAILING, 3, keys.failing, keys.counts, keys.absent,
            process, int(seconds * 1000), number, keys.prefix,
        )  # fmt: skip
        if found is None:
            return None
        return [_failing(delivery_id, ms, *fields) for delivery_id, ms, *fields in found]

    async def count(self, failing: Sequence[Failing], news: bool) -> int:
        """Add deliveries to their groups, each once; return how many were added.

        With `news` it is noted what there is to be told: ``new GROUP``, ``grown GROUP`` (tenfold),
        ``again GROUP`` (it was resolved).
        """
        keys, rows = self._keys, []
        for each in failing:
            about = each.about
            rows += [each.id, each.ms, about.id if about else "", json.dumps(about)]
        return int(
            await self._run(
                "EVAL", group_scripts.COUNT, 4, keys.failing, keys.groups, keys.news, keys.absent,
                MOST, keys.group, int(news), *rows,
            )
        )  # fmt: skip

    async def groups(self) -> list[Group]:
        """Return all groups, the one that has failed last first."""
        keys, found = self._keys, []
        for first in range(0, MOST, _GROUPS):
            now, *hashes = await self._run(
                "EVAL", group_scripts.GROUPS, 2, keys.groups, keys.absent,
                keys.group, first, _GROUPS,
            )  # fmt: skip
            found += [group for flat in hashes if flat and (group := _group(flat, now))]
            if len(hashes) < _GROUPS:
                break
        return found

    async def change_group(self, group: str, muted: datetime | None) -> bool:
        """Mute a group until then, or say that it is resolved (None); False: there is none."""
        key, until = self._keys.group + group, "" if muted is None else str(_ms(muted))
        return bool(await self._run("EVAL", group_scripts.CHANGE_GROUP, 1, key, until))

    async def forget_group(self, group: str) -> bool:
        """Remove a group; tell whether it was there."""
        keys = (self._keys.group + group, self._keys.groups)
        return bool(await self._run("EVAL", group_scripts.FORGET_GROUP, 2, *keys, group))

    async def rates(
        self, share: float | None, answered: Mapping[str, int], failed: Mapping[str, int]
    ) -> dict[str, tuple[int, int]]:
        """Add to the numbers of the last `MINUTES`; return by route how many were answered, failed.

        ``share ROUTE`` is news where the failed ones pass `share`, with `LEAST` answers or more.
        """
        keys, numbers = self._keys, (("a", answered), ("f", failed))
        triples = [(kind, *pair) for kind, by_route in numbers for pair in by_route.items()]
        flat = await self._run(
            "EVAL", group_scripts.RATES, 2, keys.rates, keys.news,
            MINUTES, "" if share is None else share, LEAST, *chain.from_iterable(triples),
        )  # fmt: skip
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return {route.decode(): (answered, failed) for route, answered, failed in rows}

    async def news(self, number: int, seconds: float) -> dict[str, str]:
        """Return at most `number` news of the last `seconds`, unless there is a pause.

        Each has its time, so that `told` removes none that has come meanwhile.
        """
        keys, first = self._keys, int((time() - seconds) * 1000)
        found = await self._run("EVAL", group_scripts.NEWS, 2, keys.news, keys.told, first, number)
        texts = [each.decode() for each in found]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def told(self, news: Mapping[str, str], pause: float, problem: str = "") -> None:
        """Remove `news`, and return no others for `pause` seconds; `problem`: none were sent."""
        keys, about = self._keys, (int(pause * 1000), problem)
        pairs = (text for pair in news.items() for text in pair)
        await self._run("EVAL", group_scripts.TOLD, 2, keys.news, keys.told, *about, *pairs)

    async def untold(self) -> str:
        """Return why the last message could not be sent, during the pause after it; "": it was."""
        problem = await self._run("GET", self._keys.told) or b""
        return str(problem, errors="replace")

    async def check(self) -> None:
        """Write two deliveries to a journal of one, as the account may lack a permission."""
        bounds = {"journal": 1, "journal_bytes": 1_000, "journal_age": 1.0}
        config = self._config.model_copy(update=bounds)
        tried = JournalStore(config, self._run, f"check-{secrets.token_hex(8)}:")
        ids, keys = ("1", "2"), tried._keys
        try:
            unannounced = await tried.write(
                [(each, RECEIVED, 1, "task", *NOT_ANSWERED, "{}", b"[]") for each in ids]
            )
        finally:
            await self._run("DEL", *keys.all, *map(keys.of, ids))
        if unannounced:
            raise StoreError(unannounced.decode())


def _ms(when: datetime) -> int:
    return max(int(when.timestamp() * 1000), 0)


def _fields(flat: Any) -> dict[bytes, bytes]:
    """Return a hash's fields, of which Redis' own reply is a list, and redis-py's a dict."""
    if isinstance(flat, dict):
        return flat
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _failing(delivery_id: bytes, ms: int, about: bytes, state: bytes, error: bytes) -> Failing:
    fields = {b"about": about, b"state": state, b"error": error, b"task_id": b""}
    entry = _read(delivery_id.decode(), fields, "0-0") if about else None
    return Failing(delivery_id.decode(), ms, group_of(entry) if entry else None)


def _group(flat: Any, now: int) -> Group | None:
    """Return the group whose hash has these fields; None: it cannot be read."""
    fields = _fields(flat).items()
    texts = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields}
    own = ("count", "first", "last", "muted", "resolved", "again")
    try:
        hours = [int(texts.get(f"h{now // HOUR - ago}", 0)) for ago in reversed(range(DAY // HOUR))]
        numbers = {name: int(texts.get(name, 0)) for name in own}
        about = About(*json.loads(texts["about"])[: len(About._fields)])
        group = Group(about, latest=texts["latest"].split(), hours=hours, now=now, **numbers)
        group.as_object()
    except (*DAMAGED, OverflowError) as exc:
        log.warning("a group of failures in the journal is damaged, and is left out: %r", exc)
        return None
    return group


def _read(delivery_id: str, flat: Any, position: str = "") -> Entry | None:
    """Return the entry whose hash has these fields; None: it is gone, or cannot be read."""
    fields = _fields(flat)
    try:
        entry = checked(_entry(fields, position)) if fields else None
        if entry is not None and delivery_id not in ("", entry.id):
            raise ValueError(f"it is said to be {entry.id}")
        return entry
    except DAMAGED as exc:
        which = delivery_id or f"at {position}"
        log.warning("the delivery %s in the journal is damaged, and is left out: %r", which, exc)
        return None


def _entry(fields: Mapping[bytes, bytes], position: str) -> Entry:
    texts = {key.decode(): value.decode() for key, value in fields.items() if key != b"call"}
    status, published = texts.get("status"), texts.get("published")
    position = position or texts["position"]
    about = known(texts["about"])
    if "received_at" not in about["delivery"]:
        ms, _ = order(position)
        received = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        about["delivery"]["received_at"] = received
    return Entry(
        **about,
        call=fields.get(b"call", b""),
        task_id=texts["task_id"],
        status=None if status is None else int(status),
        seconds=float(texts.get("seconds", 0.0)),
        published=float(published) if published else None,
        attempts=int(texts.get("attempts") or 0),
        error=texts.get("error", ""),
        state=texts["state"],
        ended_at=texts.get("ended_at", ""),
        replays=int(texts.get("replays", 0)),
        replaying=texts.get("replaying", ""),
        position=position,
        begun_at=texts.get("begun_at", ""),
        late_at=texts.get("late_at", ""),
        runs=json.loads(texts.get("runs") or "[]"),
    )

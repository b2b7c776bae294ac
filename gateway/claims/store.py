"""Claims on deliveries, in Redis: which try publishes, under which task id, and the result.

    (none) -> publishing -> confirmed -> done
                  |             |
                  +-> (none)    +-> (none)      released: the next try runs the task again

*publishing* is a lease that is renewed while the message waits for its confirm. Once it has lapsed,
the next try publishes again, under the same task id. It lapses immediately where it is not known
whether the broker has taken the message. *confirmed* lasts as long as a result is kept, or as a
process listens for it. *done* has the answer, unless that is too large.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from gateway.answer import Answer
from gateway.background import Service, Work
from gateway.claims import scripts
from gateway.claims.claim import (
    CONFIRMED,
    DIGEST,
    DONE,
    FAILED,
    HANDED_OVER,
    MINE,
    PUBLISHING,
    RELEASED,
    UNREADABLE,
    Claim,
    claim_key,
    dump,
    dump_end,
    dump_handed_over,
    failure_key,
    load,
    load_handed_over,
    read,
    read_end,
)
from gateway.clock import monotonic
from gateway.config.route import Reading
from gateway.config.settings import Config
from gateway.errors import KeyConflict, StateUnavailable, StoreError
from gateway.outcome import Outcome
from gateway.stores.pipeline import Arg
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

_RENEWAL = 1.0  # seconds between renewals of a lease
#: Seconds that replicas may take for a claim; other commands wait meanwhile, some for two of them.
_COPYING = 0.3
_AT_ONCE = 500  # claims that are prolonged before others get their turn
#: Seconds for which a failed write is repeated, and for which a task's failure is remembered, so
#: that a late confirm does not restore the claim of a failed task.
_RETRY_FOR, _REMEMBER = 60.0, 90.0
#: Seconds after an outage of Redis in which nothing is taken over, because nobody could renew a
#: lease or write its end; and seconds until the next look.
_RECOVERY, _AGAIN = 2.5, 0.5
_NAMES = {b"P": PUBLISHING, b"C": CONFIRMED, b"D": DONE}


class Claims(Service):
    """Takes and changes the claims in the Redis at `Config.state`.

    Changes are written in the background, in their order; no request waits for them.
    """

    def __init__(self, config: Config):
        #: Commands to the Redis of the claims.
        # The probe is a write that changes nothing.
        self.redis = StateStore(config, "claims", probe=("DEL", f"{config.prefix}nothing"))
        self.uses = (self.redis,)
        self._prefix = config.prefix
        self._handed_over = config.prefix + HANDED_OVER
        longest = _longest(config)
        # A strategy that blocks can write neither a confirm nor a renewal while it waits.
        standstill = longest if config.strategy_info.blocks else 0.0
        self._lease = config.confirm_timeout + 1 + standstill
        # One of another gateway whose strategy blocks.
        self._longest_lease = _ms(config.confirm_timeout + 1 + longest)
        self._window = _ms(config.idempotency_window)
        # A claim lasts for as long as a request may wait, even where results expire earlier.
        self._kept = _ms(max(config.result_expires, longest))
        self._life = max(self._window, _ms(self._lease) + self._kept)
        self._largest = config.max_kept_answer
        self._replicas = config.state_replicas
        #: Why claims are not safe, in words; empty where the replicas have the last one.
        self.uncopied = ""
        # Claims whose message waits for its confirm, and until when (monotonic seconds).
        self._leased: dict[str, tuple[Claim, float]] = {}

    @property
    def leased(self) -> int:
        """How many claims wait for the confirm of their message, so that they are renewed."""
        return len(self._leased)

    def _work(self) -> Work:
        yield "claim renewal", self._renew()

    async def take(
        self,
        identity: str,
        body: bytes,
        task_id: str,
        *,
        owner: str = "",
        span: float = 0.0,
        again: bool = False,
        strict: bool = False,
        rerun: bool = True,
        patience: float | None = None,
    ) -> Claim:
        """Claim the delivery with `identity`, or return the claim that exists.

        `task_id` is the id of the task which this try would publish, and also its own id, unless it
        has an `owner`: where the task's id comes from the identity, other tries have it, too.
        `again`: the same try takes it once more, which is not counted. `strict` refuses another
        `body`; `rerun` runs the task again where its result has expired before it was read.
        Raises `KeyConflict` and, after `patience` seconds at the latest, `StateUnavailable`.
        """
        owner = owner or task_id
        key = b""
        digest = hashlib.blake2b(body, digest_size=DIGEST).digest()
        flags = [1 - again, int(strict), int(rerun)]
        who: list[Arg] = [_raw(owner), _raw(task_id)]
        args = [*who, digest, _ms(self._lease), self._life, *flags, _ms(span), self._longest_lease]
        try:
            async with asyncio.timeout(patience):
                if self.redis.clustered is None:  # two gateways have to use the same key
                    await self.redis.run("PING")
                key = claim_key(self._prefix, identity, bool(self.redis.clustered))
                recovers = monotonic() - self.redis.well_since(key) < _RECOVERY
                reply = await self.redis.run("EVAL", scripts.TAKE, 1, key, *args, int(recovers))
                if self._replicas and reply[0] in (b"mine", b"lapsed"):
                    await self._copy(key)
        except (StoreError, TimeoutError, asyncio.CancelledError) as exc:
            # Redis may have executed the command nevertheless: then the claim is released.
            if key:
                self.release(Claim(key, owner, span, MINE, task_id, digest), not_taken=True)
            if isinstance(exc, asyncio.CancelledError):  # the sender has got an error
                raise
            log.warning("a claim could not be taken: %s", exc)
            raise StateUnavailable from exc
        found, task, first_digest, age, tries, lease, answer = reply
        if found == b"conflict":
            raise KeyConflict
        state = _NAMES.get(found) or found.decode()
        if task != who[1]:
            task_id = str(UUID(bytes=task))
        claim = Claim(key, owner, span, state, task_id, first_digest)
        claim.age = max(int(age), 0) / 1000  # Redis' clock may have been set back
        claim.tries, claim.lease = int(tries), int(lease) / 1000
        if recovers and state == PUBLISHING:
            claim.lease = max(claim.lease, _AGAIN)
        claim.answer = load(answer) if answer else None
        return claim

    async def _copy(self, key: bytes) -> None:
        """Wait until enough replicas have what was written; raises `StoreError` if too few do."""
        # Others wait for the same reply.
        found = await asyncio.shield(self.redis.copied(self._replicas, _COPYING, key))
        self.uncopied = ""
        if found < self._replicas:
            self.uncopied = f"{found} of {self._replicas} replicas have the last claim"
            self._uncopied_key = key
            raise StoreError(f"{self.uncopied} after {_COPYING:g} s")

    def channel(self, claim: Claim) -> str:
        """Return where joined tries are told that the claim was confirmed, done or released."""
        return f"{self._prefix}claimed:{claim.task_id}"

    async def state(self, claim: Claim) -> tuple[str, Outcome | None]:
        """Return the present state of `claim`, and with `FAILED` the outcome of its task.

        `RELEASED`: the claim is gone, has another task, or may be published by any try. Raises
        `StateUnavailable`.
        """
        try:
            value, failed = await self.redis.run("MGET", claim.key, self._failed(claim))
        except StoreError as exc:
            raise StateUnavailable from exc
        if failed is not None:
            return FAILED, read_end(failed)
        record = read(value) if value else None
        if record is None or record.task_id != claim.task_id:
            return RELEASED, None
        lapsed = record.state == PUBLISHING and record.until == 0
        return (RELEASED if lapsed else record.state), None

    def hold(self, claim: Claim, until: float) -> None:
        """Renew the lease until the claim is confirmed or released, or `until` (monotonic)."""
        self._leased[claim.owner] = (claim, until)

    def settle(self, claim: Claim, outcome: Outcome, answer: Answer | None, final: bool) -> None:
        """Write the end of the claim's task; `answer` and `final` are from `Route.read`."""
        if not final:
            self.fail(claim, outcome.error or "", answer)
        elif answer is not None:
            self.finish(claim, answer)
        else:  # the result can never be an answer, so the claim stays confirmed
            self.confirm(claim)

    def confirm(self, claim: Claim) -> None:
        """Write that the broker has taken the message."""
        task_id = _raw(claim.task_id)
        self._write(scripts.CONFIRM, claim, task_id, claim.digest, self._life, self._kept)

    async def prolong(self, claims: Sequence[Claim]) -> None:
        """Keep claims of confirmed messages for longer, as a process listens for their results.

        Where Redis does not answer, the next call has to do it: it is not repeated here.
        """
        for batch in (claims[i : i + _AT_ONCE] for i in range(0, len(claims), _AT_ONCE)):
            replies = (
                self._run(scripts.PROLONG, one, _raw(one.task_id), self._kept) for one in batch
            )
            for reply in await asyncio.gather(*replies, return_exceptions=True):
                if isinstance(reply, StoreError):
                    log.warning("claims could not be kept for longer: %s", reply)
                    return

    async def hand_over(self, claims: Iterable[tuple[Claim, Reading]]) -> None:
        """Leave claims to other processes, with how their results are read."""
        texts = [dump_handed_over(*each) for each in claims]
        batches = (texts[i : i + _AT_ONCE] for i in range(0, len(texts), _AT_ONCE))
        written = [self.redis.run("SADD", self._handed_over, *batch) for batch in batches]
        if written:
            written.append(self.redis.run("PEXPIRE", self._handed_over, self._life))
        for reply in await asyncio.gather(*written, return_exceptions=True):
            if isinstance(reply, StoreError):
                log.warning("claims could not be handed over to other processes: %s", reply)
                return

    async def take_over(self, most: int, listen: Callable[[Claim, Reading], object]) -> bool:
        """Call `listen` with at most so many of the claims that ended processes have left.

        Left out is what has ended, or may have ended unseen. Returns whether there were any; raises
        `StoreError`.
        """
        found = await self.redis.run("SRANDMEMBER", self._handed_over, min(most, _AT_ONCE))
        known, taken = {}, []
        for data in found:
            try:
                known[data] = load_handed_over(data)
            except UNREADABLE:
                log.warning("a claim that was handed over cannot be read: %r", data[:200])
                taken.append(data)
        prolonged = (
            self._run(scripts.TAKE_OVER, claim, _raw(claim.task_id), self._kept)
            for claim, _ in known.values()
        )
        replies = await asyncio.gather(*prolonged, return_exceptions=True)
        for (data, (claim, reading)), left in zip(known.items(), replies, strict=True):
            if isinstance(left, BaseException):
                continue
            taken.append(data)
            if left > 0:
                claim.age = (self._window - left) / 1000
                listen(claim, reading)
        if taken:  # only now: this process may have ended before
            await self.redis.run("SREM", self._handed_over, *taken)
        for reply in replies:  # those stay for the next time
            if isinstance(reply, BaseException):
                raise reply
        return bool(found)

    def finish(self, claim: Claim, answer: Answer) -> None:
        """Write the final answer, which all later tries get."""
        data = dump(answer) if self._may_keep(claim, answer) else b""
        task_id = _raw(claim.task_id)
        self._write(scripts.FINISH, claim, task_id, claim.digest, self._window, data)

    def _may_keep(self, claim: Claim, answer: Answer) -> bool:
        redacted = claim.redacted is not None and claim.redacted.is_in(answer)
        return len(answer.body) <= self._largest and not (claim.secret or redacted)

    def fail(self, claim: Claim, error: str, answer: Answer | None = None) -> None:
        """Write that the task has failed: joined tries are told, and the next try runs it again.

        `answer` is the task's answer, where it gave one that is not final.
        """
        if answer is not None and not self._may_keep(claim, answer):
            error, answer = f"answered {answer.status}", None
        end = dump_end(error, answer)
        task_id = _raw(claim.task_id)
        self._write(scripts.FAIL, claim, task_id, end, _ms(_REMEMBER), _ms(claim.span))

    def release(self, claim: Claim, not_taken: bool) -> None:
        """Write that the message was not confirmed: the next try publishes.

        It does so under the same task id, unless the broker has surely `not_taken`
        the message, and no earlier try has published it.
        """
        owner = _raw(claim.owner)
        self._write(scripts.RELEASE, claim, owner, int(not_taken), _ms(claim.span))

    def _failed(self, claim: Claim) -> bytes:
        """Return the key of the record that the claim's task has failed."""
        return failure_key(self._prefix, claim.key, claim.task_id)

    def _write(self, script: str, claim: Claim, *args: Arg, since: float = 0.0) -> None:
        """Run a script, whose last argument is the channel, and again for a while if that fails."""
        self._leased.pop(claim.owner, None)
        since = since or monotonic()

        def written(reply: asyncio.Future[Any]) -> None:
            if reply.cancelled() or (exc := reply.exception()) is None:
                return
            log.warning("a claim could not be written to Redis: %s", exc)
            if monotonic() - since < _RETRY_FOR:
                again = partial(self._write, script, claim, *args, since=since)
                asyncio.get_running_loop().call_later(_RENEWAL, again)

        self._run(script, claim, *args, self.channel(claim)).add_done_callback(written)

    def _run(self, script: str, claim: Claim, *args: Arg) -> asyncio.Future[Any]:
        return self.redis.run("EVAL", script, 2, claim.key, self._failed(claim), *args)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWAL)
            now = monotonic()
            self._leased = {k: held for k, held in self._leased.items() if now < held[1]}
            for owner, (claim, _) in self._leased.items():
                args: list[Arg] = [_raw(owner), _ms(self._lease)]
                renewed = self.redis.run("EVAL", scripts.RENEW, 1, claim.key, *args)
                renewed.add_done_callback(_missed)
            if self.uncopied:
                with suppress(StoreError):
                    await self._copy(self._uncopied_key)


def _missed(renewal: asyncio.Future[Any]) -> None:
    if not renewal.cancelled() and (exc := renewal.exception()) is not None:
        log.warning("the lease of a claim could not be renewed: %s", exc)


def _longest(config: Config) -> float:
    """Return the longest time in seconds that a request may wait."""
    return max(route.deadline + route.hold for route in config.routes)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _raw(task_id: str) -> bytes:
    return bytes.fromhex(task_id.replace("-", ""))  # a fifth of what UUID() takes

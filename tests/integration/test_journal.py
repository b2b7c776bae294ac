"""How the journal is written: in batches, and once each; what of it is Redis' own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import redis

from gateway.celery_message import Message
from gateway.cli.checks.stores import check_state
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal import store as journal_store
from gateway.journal import writing
from gateway.journal.entry import ACCEPTED, FAILED, RECEIVED, SUCCEEDED, End, Entry
from gateway.journal.filter import Filter
from gateway.journal.replay import Replayer
from gateway.journal.scripts import Keys
from gateway.journal.store import Begun, JournalStore
from gateway.journal.writing import Journal, SizeWatch
from gateway.metrics import Metrics
from gateway.stores.results import Results
from tests.support.parts import ProcessStore, started
from tests.support.redis_kinds import account
from tests.support.stack import Server
from tests.support.waiting import eventually

LOST = "gateway_journal_lost_total"


@pytest.fixture
def config(redis_server: Server) -> Config:
    return Config(result_backend=redis_server.url, journal=10_000)


@pytest.fixture
def unfollowed(redis_server: Server) -> Config:
    """Without a result store nobody looks for the ends of tasks."""
    return Config(state_url=redis_server.url, journal=10_000, strategy="pika")


def message(delivery_id: str, size: int = 100) -> Message:
    about = {"id": delivery_id, "route": "/", "source": "", "event": "", "store": False}
    call = b'[[{}, {}, "%s"], {}, {}]' % (b"x" * size)
    return Message("task", "tasks.run", "celery", call, about)


@asynccontextmanager
async def opened(config: Config, metrics: Metrics) -> AsyncIterator[Journal]:
    results = Results(config)
    journal = Journal(config, metrics, results)
    async with started(results, journal):
        yield journal


def answer(journal: Journal, delivery_id: str, state: str = ACCEPTED, size: int = 100) -> None:
    journal.write(message(delivery_id, size), "task", "", state, ("202", "0.1", "", "", ""))


async def kept(config: Config, delivery_id: str) -> Entry | None:
    async with JournalStore.opened(config) as store:
        return await store.get(delivery_id)


def writes(client: redis.Redis) -> int:
    """Return how many commands have run the script that writes; each adds to the bytes once."""
    return client.info("commandstats").get("cmdstat_incrby", {"calls": 0})["calls"]


@pytest.mark.parametrize(
    ("number", "size", "commands"), [(250, 100, 3), (100, 100, 1), (4, 600_000, 2), (1, 100, 1)]
)
async def test_one_command_writes_many(
    unfollowed, metrics, client, monkeypatch, number: int, size: int, commands: int
):
    # Given that nothing but the number and the bytes ends a batch, and the end,
    monkeypatch.setattr(writing, "GATHER", 60.0)

    async with opened(unfollowed, metrics) as journal:
        for n in range(number):
            answer(journal, f"d{n}", size=size)

    assert client.xlen(Keys(unfollowed).deliveries) == number
    assert writes(client) == commands
    assert metrics.get(LOST) == 0


async def test_an_acceptance_takes_with_it_what_has_gathered(config, metrics, client, monkeypatch):
    monkeypatch.setattr(writing, "GATHER", 60.0)

    async with opened(config, metrics) as journal:
        answer(journal, "before")
        assert await journal.begin(message("accepted"), "task", "")

    assert (await kept(config, "before")).state == ACCEPTED
    assert (await kept(config, "accepted")).state == "received"


async def test_what_fails_together_is_counted_once(config, metrics, client):
    # Given a Redis that refuses to write,
    client.config_set("maxmemory", "1")
    try:
        async with opened(config, metrics) as journal:
            # an acceptance counts when it is answered, as it is written again then.
            assert not await journal.begin(message("accepted"), "task", "")
            assert metrics.get(LOST) == 0
            answer(journal, "accepted")
            answer(journal, "other")
            await eventually(lambda: metrics.get(LOST) == 2)
            client.config_set("maxmemory", "0")
            answer(journal, "later")
    finally:
        client.config_set("maxmemory", "0")
    assert metrics.get(LOST) == 2
    assert await kept(config, "accepted") is None
    assert (await kept(config, "later")).state == ACCEPTED


async def test_a_delivery_that_could_not_be_begun_is_whole_when_answered(config, metrics, client):
    client.config_set("maxmemory", "1")
    try:
        async with opened(config, metrics) as journal:
            assert not await journal.begin(message("one"), "task", "")
            client.config_set("maxmemory", "0")
            answer(journal, "one")
    finally:
        client.config_set("maxmemory", "0")
    one = await kept(config, "one")
    assert (one.state, one.status) == (ACCEPTED, 202)
    assert metrics.get(LOST) == 0


async def test_a_delivery_that_is_gone_is_not_replayed(config, metrics, client):
    class Expiring(JournalStore):
        """Loses a delivery between the look and the beginning of its replay."""

        async def begin_replay(self, delivery_id: str, *args: Any) -> Begun:
            client.delete(Keys(config).of(delivery_id))
            return await super().begin_replay(delivery_id, *args)

    published: list[str] = []

    async def publish(_: Entry, task_id: str) -> None:
        published.append(task_id)

    async with opened(config, metrics) as journal:
        journal.write(message("one"), "task", "", FAILED, ("502", "0.1", "", "ValueError", ""))
        async with Expiring.opened(config) as store:
            while (chosen := await store.get("one")) is None:
                await asyncio.sleep(0.01)
            replay = await Replayer(store, publish).run(chosen)
            assert replay.problem == "it is not in the journal any more"
    assert published == []
    assert not client.exists(Keys(config).of("one"))


async def test_a_run_that_fails_while_it_is_replayed_has_failed(config, metrics):
    async with opened(config, metrics) as journal, JournalStore.opened(config) as store:

        async def publish(_: Entry, task_id: str) -> None:
            journal.write(message("one"), "task", "", FAILED, ("502", "0.1", "", "ValueError", ""))
            while (now := await store.get("one")) is None or now.state != FAILED:
                await asyncio.sleep(0.01)

        assert await journal.begin(message("one"), "task", "")
        chosen = await store.get("one")
        assert chosen is not None and chosen.state == RECEIVED
        replay = await Replayer(store, publish).run(chosen)
        one = await store.get("one")
        assert one is not None and one.task_id == replay.task_id
        assert [(run["state"], run["error"]) for run in one.runs] == [(FAILED, "ValueError")]


async def test_what_has_succeeded_since_it_was_chosen_is_not_replayed(config, metrics, client):
    published: list[str] = []

    async def publish(_: Entry, task_id: str) -> None:
        published.append(task_id)

    async with opened(config, metrics) as journal, JournalStore.opened(config) as store:
        assert await journal.begin(message("one"), "task", "")
        chosen = await store.get("one")
        assert chosen is not None
        await store.settle("one", "task", End(SUCCEEDED))
        left = await Replayer(store, publish).run(chosen)
        assert (left.problem, published) == ("its state is succeeded by now; see `again`", [])
        assert left.may_have_run
        # Who asks for it gets it.
        assert not (await Replayer(store, publish).run(chosen, again=True)).problem
        assert len(published) == 1


async def test_who_replays_is_told_that_the_store_has_lost_the_beginning(config, metrics, client):
    async def publish(*_: object) -> None:
        client.hdel(Keys(config).of("one"), "replaying", "replaying_until")

    async with opened(config, metrics) as journal, JournalStore.opened(config) as store:
        assert await journal.begin(message("one"), "task", "")
        chosen = await store.get("one")
        assert chosen is not None
        replay = await Replayer(store, publish).run(chosen)
    assert replay.problem.startswith("it was published, which the journal does not have: ")


async def test_what_is_too_old_is_removed_without_results(unfollowed, metrics, client, monkeypatch):
    monkeypatch.setattr(writing, "TRIM_PAUSE", 0.02)
    monkeypatch.setattr(writing, "_TRIMMED", 3)
    config, keys = unfollowed.model_copy(update={"journal_age": 0.001}), Keys(unfollowed)

    async with opened(unfollowed, metrics) as journal:
        for n in range(10):
            answer(journal, f"d{n}")
            client.xadd(keys.refused, {"id": f"r{n}"})
        await eventually(lambda: client.xlen(keys.deliveries) == 10)
        assert int(client.get(keys.bytes)) > 0
        async with JournalStore.opened(config) as store, started(SizeWatch(config, store, metrics)):
            await eventually(lambda: not client.xlen(keys.deliveries) + client.xlen(keys.refused))
            await eventually(lambda: metrics.get("gateway_journal_bytes") == 0)
    left = set(client.scan_iter()) - {keys.deliveries.encode(), keys.refused.encode()}
    assert left == {keys.bytes.encode()}


@pytest.mark.parametrize("lost", ["deliveries", "bytes"])
async def test_a_key_that_was_lost_does_not_change_the_bounds(redis_server, metrics, client, lost):
    """Redis should evict nothing; where it does, the sum is counted anew."""
    config = Config(state_url=redis_server.url, journal=20, strategy="pika")
    keys = Keys(config)

    async with opened(config, metrics) as journal:
        for n in range(15):
            answer(journal, f"d{n}", size=1_000)
        await eventually(lambda: client.xlen(keys.deliveries) == 15)
        client.delete(getattr(keys, lost))
        for n in range(10):
            answer(journal, f"e{n}", size=1_000)
        await eventually(lambda: client.exists(keys.of("e9")))
        # A journal that is shorter by now keeps what is allowed.
        for n in range(30):
            answer(journal, f"f{n}", size=1_000)
        await eventually(lambda: client.exists(keys.of("f29")))
    entries = client.xrange(keys.deliveries)
    assert len(entries) == 20
    assert int(client.get(keys.bytes)) == sum(int(fields[b"bytes"]) for _, fields in entries)


async def test_who_may_not_publish_keeps_bounds_and_is_told(redis_server, metrics, client, caplog):
    url = account(redis_server, channels=())
    config = Config(state_url=url, journal=10, strategy="pika")
    keys = Keys(config)

    async with opened(config, metrics) as journal:
        for n in range(30):
            answer(journal, f"d{n}")
        await eventually(lambda: client.xlen(keys.deliveries) == 10)
        answer(journal, "last")
        await eventually(lambda: client.exists(keys.of("last")))
    entries = client.xrange(keys.deliveries)
    assert int(client.get(keys.bytes)) == sum(int(fields[b"bytes"]) for _, fields in entries)
    assert caplog.text.count("the journal's changes cannot be announced") == 1
    assert metrics.get(LOST) == 0
    (finding,) = await check_state(config)
    assert (
        finding.status == "fail" and "channel" in finding.problem and "&* +@all" in finding.remedy
    )
    # What was tried has left nothing.
    assert len(list(client.scan_iter())) == 2 + 10


async def test_who_may_not_use_digests_writes_with_whole_scripts(redis_server, metrics, client):
    url = account(redis_server, "evalsha")
    config = Config(state_url=url, journal=100, strategy="pika")

    async with opened(config, metrics) as journal:
        for n in range(5):
            assert await journal.begin(message(f"d{n}"), "task", "")
    assert client.xlen(Keys(config).deliveries) == 5
    # Once a refusal is enough.
    assert client.info("commandstats")["cmdstat_evalsha"]["rejected_calls"] == 1


async def test_check_says_which_right_the_journal_lacks(redis_server, client):
    url = account(redis_server, "unlink")
    (found, *_) = await check_state(Config(state_url=url, journal=10, strategy="pika"))
    assert found.status == "fail" and "+@all -@dangerous" in found.remedy
    assert re.search("can't run|'unlink'", found.problem)  # in Redis 7, and since Redis 8
    (other, *_) = await check_state(Config(state_url=url, strategy="pika"))
    assert other.status != "fail"


async def test_what_has_no_room_is_lost_and_counted_once(config, metrics, client):
    config = config.model_copy(update={"max_in_flight_bytes": 2_000})

    async with opened(config, metrics) as journal:
        begun = journal.begin(message("large", size=2_000), "task", "")
        assert begun.done() and not begun.result()
        assert metrics.get(LOST) == 0  # it is written again when it is answered
        answer(journal, "large", size=2_000)
        assert metrics.get(LOST) == 1
        answer(journal, "small")
    assert await kept(config, "large") is None
    assert (await kept(config, "small")).state == ACCEPTED


async def test_what_has_expired_is_left_out_before_it_is_trimmed(unfollowed, metrics, client):
    async with opened(unfollowed, metrics) as journal:
        for delivery_id in ("one", "expired", "other"):
            assert await journal.begin(message(delivery_id), "task", "")
        client.delete(Keys(unfollowed).of("expired"))
        async with (
            JournalStore.opened(unfollowed) as store,
            aclosing(store.find(Filter())) as found,
        ):
            assert [entry.id async for entry in found] == ["other", "one"]


async def test_silence_is_no_loss_and_a_redis_that_does_not_answer_is(stack, start, monkeypatch):
    monkeypatch.setattr(journal_store, "_SILENCE", 0.1)
    server = start(stack.redis)
    config = Config(state_url=server.url, journal=10, strategy="pika")

    with server.client as client:
        # Given a change after a time in which Redis was asked more than once,
        loop, change = asyncio.get_running_loop(), (Keys(config).changes, "late accepted")
        async with aclosing(ProcessStore(config).changes()) as changes:
            assert await anext(changes) == ""
            loop.call_later(0.5, client.publish, *change)
            assert await anext(changes) == "late"
            with server.frozen(), pytest.raises(GatewayError, match="no answer in time"):
                await anext(changes)

"""How the journal is written: in batches, once each, and beside replays; how it is trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import redis

from gateway.celery_message import Message
from gateway.cli.checks import stores
from gateway.cli.checks.finding import Finding
from gateway.config.settings import Config
from gateway.errors import Rejected
from gateway.journal import scripts, size_watch, store
from gateway.journal.entry import ACCEPTED, FAILED, REPLAYED, SUCCEEDED, Entry
from gateway.journal.follower import settlement
from gateway.journal.keys import Keys
from gateway.journal.reading import Reader, reading
from gateway.journal.replay import Replays
from gateway.journal.size_watch import SizeWatch
from gateway.journal.store import Journal
from gateway.metrics import Metrics
from gateway.outcome import SUCCESS, Outcome
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually

LOST = "gateway_journal_lost_total"


@pytest.fixture(scope="module")
def redis_server(stack: Stack) -> Iterator[Server]:
    server = stack.redis()
    yield server
    server.stop()


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.config_resetstat()
        yield client


@pytest.fixture
def config(redis_server: Server) -> Config:
    return Config(result_backend=redis_server.url, journal=10_000)


@pytest.fixture
def unfollowed(redis_server: Server) -> Config:
    """Without a result store nobody looks for the ends of tasks."""
    return Config(state_url=redis_server.url, journal=10_000, strategy="pika")


@pytest.fixture
def check_state() -> Callable[[Config], list[Finding]]:
    return lambda config: asyncio.run(stores.check_state(config))


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


def message(delivery_id: str, size: int = 100) -> Message:
    about = {"id": delivery_id, "route": "/", "source": "", "event": "", "store": False}
    call = b'[[{}, {}, "%s"], {}, {}]' % (b"x" * size)
    return Message("task", "tasks.run", "celery", call, about)


def with_journal(
    config: Config, metrics: Metrics, work: Callable[[Journal], Awaitable[None]]
) -> None:
    async def run() -> None:
        journal = Journal(config, metrics)
        await journal.start()
        try:
            await work(journal)
        finally:
            await journal.stop()

    asyncio.run(run())


def answer(journal: Journal, delivery_id: str, state: str = ACCEPTED, size: int = 100) -> None:
    journal.write(message(delivery_id, size), "task", "", state, 202, 0.1, "")


def kept(config: Config, delivery_id: str) -> Entry | None:
    async def read() -> Entry | None:
        async with reading(config) as reader:
            return await reader.get(delivery_id)

    return asyncio.run(read())


def writes(client: redis.Redis) -> int:
    """Return how many commands have run the script that writes; each adds to the bytes once."""
    return client.info("commandstats").get("cmdstat_incrby", {"calls": 0})["calls"]


@pytest.mark.parametrize(
    ("number", "size", "commands"), [(250, 100, 3), (100, 100, 1), (4, 600_000, 2), (1, 100, 1)]
)
def test_one_command_writes_many(
    unfollowed, metrics, client, monkeypatch, number: int, size: int, commands: int
):
    # Given that nothing but the number and the bytes ends a batch, and the end,
    monkeypatch.setattr(store, "GATHER", 60.0)

    async def work(journal: Journal) -> None:
        for n in range(number):
            answer(journal, f"d{n}", size=size)

    with_journal(unfollowed, metrics, work)

    assert client.xlen(Keys(unfollowed).deliveries) == number
    assert writes(client) == commands
    assert metrics.get(LOST) == 0


def test_an_acceptance_takes_with_it_what_has_gathered(config, metrics, client, monkeypatch):
    monkeypatch.setattr(store, "GATHER", 60.0)

    async def work(journal: Journal) -> None:
        answer(journal, "before")
        assert await journal.begin(message("accepted"), "task", "")

    with_journal(config, metrics, work)

    assert kept(config, "before").state == ACCEPTED
    assert kept(config, "accepted").state == "received"


def test_what_fails_together_is_counted_once(config, metrics, client):
    # Given a Redis that refuses to write,
    client.config_set("maxmemory", "1")
    try:

        async def work(journal: Journal) -> None:
            # an acceptance counts when it is answered, as it is written again then.
            begun = journal.begin(message("accepted"), "task", "")
            assert not await begun
            assert metrics.get(LOST) == 0
            journal.write(message("accepted"), "task", "", ACCEPTED, 202, 0.1, "", begun)
            answer(journal, "other")
            await eventually(lambda: metrics.get(LOST) == 2)
            client.config_set("maxmemory", "0")
            answer(journal, "later")

        with_journal(config, metrics, work)
    finally:
        client.config_set("maxmemory", "0")
    assert metrics.get(LOST) == 2
    assert kept(config, "accepted") is None
    assert kept(config, "later").state == ACCEPTED


def test_a_delivery_that_could_not_be_begun_is_whole_when_it_is_answered(config, metrics, client):
    client.config_set("maxmemory", "1")
    try:

        async def work(journal: Journal) -> None:
            begun = journal.begin(message("one"), "task", "")
            assert not await begun
            client.config_set("maxmemory", "0")
            journal.write(message("one"), "task", "", ACCEPTED, 202, 0.1, "", begun)

        with_journal(config, metrics, work)
    finally:
        client.config_set("maxmemory", "0")
    assert (kept(config, "one").state, kept(config, "one").status) == (ACCEPTED, 202)
    assert metrics.get(LOST) == 0


def replays(config: Config, ask: result_store.Ask, published: list[str]) -> Replays:
    async def publish(_entry: Entry, task_id: str) -> None:
        if published and published[0] == "refuse":
            raise Rejected
        published.append(task_id)

    return Replays(config, ask, publish)


def test_an_answer_after_a_replay_leaves_the_replays_task(config, metrics, client):
    published: list[str] = []

    async def work(journal: Journal) -> None:
        begun = journal.begin(message("held"), "first", "")
        assert await begun
        async with result_store.asking(config, config.state) as ask:
            chosen = await Reader(config, ask).get("held")
            assert (await replays(config, ask, published).run(chosen)).problem == ""
            journal.write(message("held"), "first", "", SUCCEEDED, 200, 0.1, "", begun)
            reader = Reader(config, ask)

            async def replayed() -> Entry:
                return await reader.get("held")

            while (await replayed()).status is None:
                await asyncio.sleep(0.01)
            entry = await replayed()
            assert (entry.state, entry.task_id, entry.status) == (REPLAYED, published[0], 200)
            # Its end is the replay's, and not that of the first task.
            keys = Keys(config)
            await ask(*settlement(keys, "held", "first", FAILED, "late"))
            assert (await replayed()).state == REPLAYED
            assert await ask(*settlement(keys, "held", published[0], SUCCEEDED, "")) == b"accepted"
            assert (await replayed()).state == SUCCEEDED

    with_journal(config, metrics, work)


def test_the_end_of_a_replay_is_counted_once_though_two_write_it(unfollowed, metrics, client):
    config = unfollowed
    published: list[str] = []

    async def work(journal: Journal) -> None:
        journal.write(message("one"), "first", "", FAILED, 502, 0.1, "ValueError")
        async with result_store.asking(config, config.state) as ask:
            reader = Reader(config, ask)
            while (chosen := await reader.get("one")) is None:
                await asyncio.sleep(0.01)
            some = replays(config, ask, published)
            await some.run(chosen)
            # Given that the command line writes the end first,
            await some.settle("one", published[0], Outcome(SUCCESS))
            assert (await reader.get("one")).state == SUCCEEDED
            # a gateway is still told how the delivery was answered, once.
            command = settlement(Keys(config), "one", published[0], SUCCEEDED, "")
            assert await ask(*command) == b"accepted"
            assert await ask(*command) is None

    with_journal(config, metrics, work)


@pytest.mark.parametrize(
    ("status", "told"), [(202, b"accepted"), (504, b"error"), (0, b"error"), (None, b"unknown")]
)
def test_an_end_tells_how_the_delivery_was_answered(unfollowed, metrics, client, status, told):
    config = unfollowed

    async def work(journal: Journal) -> None:
        begun = journal.begin(message("one"), "task", "")
        assert await begun
        if status is not None:
            journal.write(message("one"), "task", "", ACCEPTED, status, 0.1, "", begun)
        async with result_store.asking(config, config.state) as ask:
            keys, reader = Keys(config), Reader(config, ask)
            await ask("ZADD", keys.open, 1, "one")  # as a follower would have it
            while (await reader.get("one")).status != status:
                await asyncio.sleep(0.01)
            assert await ask(*settlement(keys, "one", "task", FAILED, "ValueError")) == told

    with_journal(config, metrics, work)
    assert kept(config, "one").state == FAILED


def test_a_delivery_that_is_gone_is_not_replayed(config, metrics, client):
    published: list[str] = []

    async def work(journal: Journal) -> None:
        journal.write(message("one"), "task", "", FAILED, 502, 0.1, "ValueError")
        async with result_store.asking(config, config.state) as ask:
            reader, keys = Reader(config, ask), Keys(config)
            while (chosen := await reader.get("one")) is None:
                await asyncio.sleep(0.01)
            begin = ("EVAL", scripts.BEGIN_REPLAY, 1, keys.of("one"), "new", "task")

            async def gone(*command: str | bytes | int) -> object:
                if command[:2] == begin[:2]:  # it expires between the look and the beginning
                    await ask("DEL", keys.of("one"))
                return await ask(*command)

            replay = await replays(config, gone, published).run(chosen)
            assert replay.problem == "it is not in the journal any more"

    with_journal(config, metrics, work)
    assert published == []
    assert not client.exists(Keys(config).of("one"))


def test_what_is_too_old_is_removed_though_no_results_are_followed(
    unfollowed, metrics, client, monkeypatch
):
    monkeypatch.setattr(size_watch, "PAUSE", 0.02)
    monkeypatch.setattr(size_watch, "_MOST", 3)
    config, keys = unfollowed, Keys(unfollowed)

    async def work(journal: Journal) -> None:
        for n in range(10):
            answer(journal, f"d{n}")
            client.xadd(keys.refused, {"id": f"r{n}"})
        await eventually(lambda: client.xlen(keys.deliveries) == 10)
        assert int(client.get(keys.bytes)) > 0
        pipeline = Pipeline(lambda: result_store.connect(config, config.state), "test")
        await pipeline.start()
        watch = SizeWatch(keys, metrics, pipeline, 0.001)
        await watch.start()
        try:
            await eventually(lambda: not client.xlen(keys.deliveries) + client.xlen(keys.refused))
            await eventually(lambda: metrics.get("gateway_journal_bytes") == 0)
        finally:
            await watch.stop()
            await pipeline.stop()

    with_journal(config, metrics, work)
    left = set(client.scan_iter()) - {keys.deliveries.encode(), keys.refused.encode()}
    assert left == {keys.bytes.encode()}


@pytest.mark.parametrize("lost", ["deliveries", "bytes"])
def test_a_key_that_was_lost_does_not_change_the_bounds(redis_server, metrics, client, lost):
    """Redis should evict nothing; where it does, the sum is counted anew."""
    config = Config(state_url=redis_server.url, journal=20, strategy="pika")
    keys = Keys(config)

    async def work(journal: Journal) -> None:
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

    with_journal(config, metrics, work)
    entries = client.xrange(keys.deliveries)
    assert len(entries) == 20
    assert int(client.get(keys.bytes)) == sum(int(fields[b"bytes"]) for _, fields in entries)


def test_who_may_not_publish_keeps_the_bounds_and_is_told(
    redis_server, metrics, client, caplog, check_state
):
    client.acl_setuser(
        "quiet", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"],
        reset_channels=True,
    )  # fmt: skip
    url = redis_server.url.replace("redis://", "redis://quiet:secret@")
    config = Config(state_url=url, journal=10, strategy="pika")
    keys = Keys(config)

    async def work(journal: Journal) -> None:
        for n in range(30):
            answer(journal, f"d{n}")
        await eventually(lambda: client.xlen(keys.deliveries) == 10)
        answer(journal, "last")
        await eventually(lambda: client.exists(keys.of("last")))

    with_journal(config, metrics, work)
    entries = client.xrange(keys.deliveries)
    assert int(client.get(keys.bytes)) == sum(int(fields[b"bytes"]) for _, fields in entries)
    assert caplog.text.count("changes of the journal are not published") == 1
    assert metrics.get(LOST) == 0
    (finding,) = check_state(config)
    assert (
        finding.status == "fail" and "channel" in finding.problem and "+@pubsub" in finding.remedy
    )
    # What was tried has left nothing.
    assert len(list(client.scan_iter())) == 2 + 10


def test_who_may_not_use_digests_writes_with_whole_scripts(redis_server, metrics, client):
    client.acl_setuser(
        "whole", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"],
        channels=["*"], commands=["-evalsha"],
    )  # fmt: skip
    url = redis_server.url.replace("redis://", "redis://whole:secret@")
    config = Config(state_url=url, journal=100, strategy="pika")

    async def work(journal: Journal) -> None:
        for n in range(5):
            assert await journal.begin(message(f"d{n}"), "task", "")

    with_journal(config, metrics, work)
    assert client.xlen(Keys(config).deliveries) == 5
    # Once a refusal is enough.
    assert client.info("commandstats")["cmdstat_evalsha"]["rejected_calls"] == 1


def test_check_says_which_right_the_journal_lacks(redis_server, client, check_state):
    client.acl_setuser(
        "weak", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"],
        channels=["*"], commands=["-unlink"],
    )  # fmt: skip
    url = redis_server.url.replace("redis://", "redis://weak:secret@")
    assert "can't run" in check_state(Config(state_url=url, journal=10, strategy="pika"))[0].problem
    (other, *_) = check_state(Config(state_url=url, strategy="pika"))
    assert other.status != "fail"


def test_what_has_no_room_is_lost_and_counted_once(config, metrics, client):
    config = config.model_copy(update={"max_in_flight_bytes": 1_000})

    async def work(journal: Journal) -> None:
        large = message("large", size=2_000)
        begun = journal.begin(large, "task", "")
        assert begun.done() and not begun.result()
        assert metrics.get(LOST) == 0  # it is written again when it is answered
        journal.write(large, "task", "", ACCEPTED, 202, 0.1, "", begun)
        assert metrics.get(LOST) == 1
        answer(journal, "small")

    with_journal(config, metrics, work)
    assert kept(config, "large") is None
    assert kept(config, "small").state == ACCEPTED

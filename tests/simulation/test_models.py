"""What the models do that no single real server can be made to do: crashes, lost leaders."""

from __future__ import annotations

from collections.abc import Iterator

import hiredis
import pytest
from pika import spec

from tests.simulation.amqp_client import TRANSIENT, Channel, Connection
from tests.simulation.drivers import Handed, handed
from tests.simulation.rabbitmq_model import Broker
from tests.simulation.redis_model import Redis

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def carrier() -> Iterator[Handed]:
    with handed(Broker) as carrier:
        yield carrier


@pytest.fixture
def broker(carrier: Handed) -> Broker:
    broker: Broker = carrier.server
    return broker


def channel_of(carrier: Handed) -> Channel:
    return Connection(carrier.connect()).channel().confirms()


def restarted(carrier: Handed, broker: Broker, lose: bool) -> Channel:
    broker.crash(lose_unsynced=lose)
    broker.restart()
    return channel_of(carrier)


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
@pytest.mark.parametrize("lose", [False, True])
def test_a_crash_loses_only_what_was_not_confirmed(carrier, broker, arguments, lose):
    channel = channel_of(carrier)
    channel.declare("q", arguments=arguments)
    channel.put("q", b"confirmed")
    channel.publish("q", b"on its way")
    kept = [b"confirmed"] if lose else [b"confirmed", b"on its way"]
    assert restarted(carrier, broker, lose).bodies("q") == kept


def test_a_crash_may_bring_back_what_was_just_acknowledged(carrier, broker):
    seen = set()
    for _ in range(30):
        channel = channel_of(carrier)
        channel.declare("q")
        channel.put("q", b"1")
        got = channel.get("q", no_ack=False)
        assert got is not None
        channel.send(spec.Basic.Ack(got.method.delivery_tag))
        carrier.pause(0.01)
        again = restarted(carrier, broker, lose=True).get("q")
        assert again is None or again.method.redelivered
        seen.add(again is not None)
    assert seen == {True, False}


def test_an_older_acknowledgement_outlives_a_crash(carrier, broker):
    channel = channel_of(carrier)
    channel.declare("q")
    channel.put("q", b"1")
    got = channel.get("q", no_ack=False)
    assert got is not None
    channel.send(spec.Basic.Ack(got.method.delivery_tag))
    carrier.pause(0.1)
    assert restarted(carrier, broker, lose=True).get("q") is None


def test_a_crash_is_one_delivery_more_for_a_quorum_queue(carrier, broker):
    channel = channel_of(carrier)
    channel.declare("q", arguments=QUORUM)
    channel.put("q", b"1")
    workers = [channel_of(carrier) for _ in range(3)]
    for worker in workers:
        worker.consume("q")
    got = restarted(carrier, broker, lose=False).get("q")
    assert got is not None and got.properties.headers == {"x-delivery-count": 1}


def test_without_a_leader_a_quorum_queue_confirms_and_delivers_nothing(carrier, broker):
    channel, worker = channel_of(carrier), channel_of(carrier)
    channel.declare("q", arguments=QUORUM)
    channel.declare("classic")
    channel.put("q", b"1")
    broker.leader(False)
    worker.consume("q")
    channel.publish("q", b"2", TRANSIENT)
    for number in range(5):
        channel.publish("classic", b"%d" % number)
    # One confirm may be for several messages, but never for the one that waits.
    tags = {3, 4, 5, 6, 7}
    while tags:
        ack = channel.next(spec.Basic.Ack).method
        assert not ack.multiple
        tags.remove(ack.delivery_tag)
    channel.nothing()
    worker.nothing()
    assert broker.messages("q") == 2
    broker.leader(True)
    assert channel.next(spec.Basic.Ack).method.delivery_tag == 2
    assert [worker.delivered().body for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("how", ["always", "everysec", "promoted"])
def test_a_crash_of_redis_loses_a_second_at_most(how):
    with handed(Redis) as carrier:
        model: Redis = carrier.server
        link, reader = carrier.connect(), hiredis.Reader()

        def run(*words: str) -> object:
            link.send(hiredis.pack_command(words))
            reader.feed(link.receive())
            return reader.gets()

        run("SET", "old", "1")
        run("HSET", "table", "a", "1")
        carrier.pause(1.1)
        run("SET", "old", "2")
        run("SET", "new", "1")
        run("HSET", "table", "a", "2", "b", "2")
        run("XADD", "stream", "*", "a", "1")
        if how == "promoted":
            model.promote(lost_seconds=0.5)
        else:
            model.crash(lose_last_second=how == "everysec")
            model.restart()
            link, reader = carrier.connect(), hiredis.Reader()
        if how == "always":
            assert run("MGET", "old", "new") == [b"2", b"1"]
            assert run("HGETALL", "table") == [b"a", b"2", b"b", b"2"]
        else:
            assert run("MGET", "old", "new") == [b"1", None]
            assert run("HGETALL", "table") == [b"a", b"1"]
            assert run("XLEN", "stream") == 0

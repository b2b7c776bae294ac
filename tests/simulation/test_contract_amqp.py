"""What the gateway and its workers use of AMQP, with RabbitMQ and with its model.

A difference is a bug of the model. It was made with RabbitMQ 3.10; where a newer one differs, the
case says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pika
import pytest
from pika import spec

from tests.simulation.amqp_client import PERSISTENT, TRANSIENT, Channel, Connection
from tests.simulation.drivers import Carrier, handed, sockets, until
from tests.simulation.rabbitmq_model import Broker
from tests.support.stack import RabbitMQ

LARGEST = 1_000  # bytes of a body, where that is limited
LOCKED = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"


@dataclass
class Server:
    """RabbitMQ or its model, and what may be done to it."""

    carrier: Carrier
    #: Begins an alarm, which ends with the context.
    alarm: Callable[[], AbstractContextManager[None]]
    #: Takes bodies of `LARGEST` bytes and no larger ones.
    limited: Callable[[], AbstractContextManager[None]]
    close_connections: Callable[[], object]
    restart: Callable[[], object]

    def connect(self, **options: Any) -> Connection:
        return Connection(self.carrier.connect(), **options)

    def channel(self) -> Channel:
        return self.connect().channel()

    def confirming(self) -> Channel:
        return self.channel().confirms()

    def name(self) -> str:
        return f"contract.{secrets.token_hex(6)}"


@contextmanager
def simulated() -> Iterator[Server]:
    with handed(Broker) as carrier:
        broker: Broker = carrier.server

        @contextmanager
        def alarm() -> Iterator[None]:
            broker.alarm(True)
            yield
            broker.alarm(False)

        def limited() -> AbstractContextManager[None]:
            broker.largest = LARGEST
            return nullcontext()

        def restart() -> None:
            broker.crash()
            broker.restart()

        yield Server(carrier, alarm, limited, broker.close_connections, restart)


@contextmanager
def real(rabbitmq: RabbitMQ) -> Iterator[Server]:
    def limited() -> AbstractContextManager[None]:
        return rabbitmq.setting("max_message_size", LARGEST)

    def close_connections() -> None:
        # It waits for the clients' answers.
        Thread(target=rabbitmq.ctl, args=("close_all_connections", "as asked")).start()

    def restart() -> None:
        rabbitmq.ctl("stop_app")
        rabbitmq.ctl("start_app")

    with sockets(rabbitmq.url) as carrier:
        yield Server(carrier, rabbitmq.alarm, limited, close_connections, restart)


@pytest.fixture(params=["simulated", "real"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with (
        simulated()
        if request.param == "simulated"
        else real(request.getfixturevalue("own_rabbitmq")) as server
    ):
        yield server


@pytest.fixture
def queue(server: Server) -> str:
    return server.name()


# Connections ----------------------------------------------------------------------------------


def test_a_connection_is_negotiated_and_closed(server):
    connection = server.connect()
    start, tune = connection.start, connection.tuned
    assert (start.version_major, start.version_minor) == (0, 9)
    assert b"PLAIN" in start.mechanisms.split()
    wanted = {"publisher_confirms", "basic.nack", "connection.blocked", "consumer_cancel_notify"}
    capabilities = start.server_properties["capabilities"]
    assert all(capabilities[each] for each in wanted)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)
    assert isinstance(connection.opened, spec.Connection.OpenOk)
    connection.close()
    with pytest.raises(TimeoutError):  # the client ends it
        connection._link.receive(0.1)


def test_a_wrong_password_is_refused(server):
    close = server.connect(login="\0guest\0wrong").tuned
    assert isinstance(close, spec.Connection.Close) and close.reply_code == 403
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused")


def test_a_virtual_host_that_is_missing_is_refused(server):
    close = server.connect(host="missing").opened
    assert isinstance(close, spec.Connection.Close) and close.reply_code == 530
    assert (close.class_id, close.method_id) == (10, 40)
    assert close.reply_text == "NOT_ALLOWED - vhost missing not found"


def test_heartbeats_are_those_that_the_client_wants(server):
    connection = server.connect(heartbeat=1)
    begun = server.carrier.now()
    connection.ended()  # as it says nothing
    assert connection.beats >= 2
    assert 2 <= server.carrier.now() - begun < 10


def test_a_forced_end_says_so(server):
    connection = server.connect()
    server.close_connections()
    close = connection.next().method
    assert (close.reply_code, close.class_id, close.method_id) == (320, 0, 0)
    assert close.reply_text == "CONNECTION_FORCED - as asked"
    connection.send(0, spec.Connection.CloseOk())
    connection.ended()


def test_publishing_connections_are_blocked_by_an_alarm_and_not_read(server, queue):
    publishing, other, silent = server.confirming(), server.confirming(), server.channel()
    silent.declare(queue)
    publishing.put(queue, b"1")
    with server.alarm():
        publishing.publish(queue, b"2")  # only now it is told
        assert publishing.connection.next().method.reason == "low on memory"
        other.publish(queue, b"3")
        assert isinstance(other.connection.next().method, spec.Connection.Blocked)
        assert silent.look(queue) == (1, 0)
    for channel in (publishing, other):
        assert isinstance(channel.connection.next().method, spec.Connection.Unblocked)
    publishing.acked(2)
    other.acked(1)
    assert sorted(silent.bodies(queue)) == [b"1", b"2", b"3"]
    assert not silent.connection._got[0]


# Channels -------------------------------------------------------------------------------------


def test_an_error_closes_only_its_channel_whose_number_is_free_then(server, queue):
    connection = server.connect()
    one, other = connection.channel(), connection.channel()
    missing = spec.Queue.Declare(0, queue, passive=True)
    one.refused(missing, 404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")
    other.nothing()
    one.call(spec.Channel.Open(), spec.Channel.OpenOk)
    one.call(spec.Channel.Close(200, "", 0, 0), spec.Channel.CloseOk)
    other.nothing()


def test_a_flow_that_goes_on_is_only_answered(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    assert channel.call(spec.Channel.Flow(True), spec.Channel.FlowOk).active
    channel.put(queue, b"1")
    assert channel.look(queue) == (1, 0)


def test_what_follows_an_error_is_ignored(server, queue):
    channel, looking = server.channel(), server.channel()
    channel.declare(queue)
    wrong = channel.publish(queue, exchange=server.name())
    channel.publish(queue, b"ignored")
    channel.closed(wrong, 404, "NOT_FOUND - no exchange")
    channel.call(spec.Channel.Open(), spec.Channel.OpenOk)
    channel.nothing()
    assert looking.look(queue) == (0, 0)


# Queues ---------------------------------------------------------------------------------------


def test_declaring_tells_how_many_messages_and_consumers_there_are(server, queue):
    channel = server.confirming()
    assert channel.declare(queue) == (0, 0)
    channel.put(queue, b"1", b"2")
    assert channel.declare(queue) == channel.look(queue) == (2, 0)
    other = server.channel()
    other.qos(1)
    other.consume(queue)
    other.delivered()
    assert channel.look(queue) == (1, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "'durable' for queue '{}' in vhost '/': received 'false' but current"
         " is 'true'"),
        ({"auto_delete": True}, "'auto_delete' for queue '{}' in vhost '/': received 'true' but"
         " current is 'false'"),
        ({"arguments": {"x-message-ttl": 5}}, "'x-message-ttl' for queue '{}' in vhost '/':"
         " received the value '5' of type 'signedint' but current is none"),
        ({"arguments": {"x-queue-type": "quorum"}}, "'x-queue-type' for queue '{}' in vhost '/':"
         " received"),
    ],
)  # fmt: skip
def test_another_declaration_of_a_queue_is_refused(server, queue, options, text):
    channel = server.channel()
    channel.declare(queue)
    again = spec.Queue.Declare(0, queue, **{"durable": True, **options})
    channel.refused(again, 406, f"PRECONDITION_FAILED - inequivalent arg {text.format(queue)}")


def test_an_argument_that_is_left_out_or_has_another_value_is_refused(server, queue):
    channel = server.channel()
    channel.declare(queue, arguments={"x-dead-letter-exchange": "a", "x-max-length": 1})
    for arguments, text in (
        ({"x-max-length": 1}, "'x-dead-letter-exchange' for queue '{}' in vhost '/': received none"
         " but current is the value 'a' of type 'longstr'"),
        ({"x-dead-letter-exchange": "a", "x-max-length": 2}, "'x-max-length' for queue '{}' in"
         " vhost '/': received '2' but current is '1'"),
    ):  # fmt: skip
        again = spec.Queue.Declare(0, queue, durable=True, arguments=arguments)
        text = f"PRECONDITION_FAILED - inequivalent arg {text.format(queue)}"
        channel.refused(again, 406, text)
        channel.call(spec.Channel.Open(), spec.Channel.OpenOk)


def test_an_exclusive_queue_is_for_its_connection_and_goes_with_it(server, queue):
    owner, other = server.connect(), server.connect()
    own = owner.channel()
    own.declare(queue, exclusive=True, auto_delete=True, durable=False)
    own.consume(queue, no_ack=True, exclusive=True)
    for method in (
        spec.Queue.Declare(0, queue, passive=True),
        spec.Queue.Declare(0, queue, exclusive=True, auto_delete=True),
        spec.Basic.Consume(0, queue),
    ):
        other.channel().refused(method, 405, LOCKED)
    other.channel().publish(queue, b"a reply", TRANSIENT)
    got = own.delivered()
    assert (got.body, got.method.routing_key, got.method.redelivered) == (b"a reply", queue, False)
    owner.close()
    gone(server, other, queue)


def test_an_exclusive_queue_goes_with_a_connection_that_vanishes(server, queue):
    owner, other = server.connect(), server.connect()
    owner.channel().declare(queue, exclusive=True, durable=False)
    owner.vanish()
    gone(server, other, queue)


def gone(server: Server, connection: Connection, queue: str, every: float = 0.02) -> None:
    """Wait until there is no such queue; each look is a use of it, `every` so many seconds."""

    def missing() -> bool:
        channel = connection.channel()
        channel.send(spec.Queue.Declare(0, queue, passive=True))
        got = connection.next(channel.number).method
        if isinstance(got, spec.Channel.Close):
            channel.send(spec.Channel.CloseOk())
            return bool(got.reply_code == 404)
        return False

    until(server.carrier, missing, every)


def test_an_auto_delete_queue_goes_with_its_last_consumer(server, queue):
    channel = server.channel()
    channel.declare(queue, auto_delete=True)
    tags = [channel.consume(queue), channel.consume(queue)]
    for tag in tags:
        assert channel.look(queue)[1] > 0
        assert channel.call(spec.Basic.Cancel(tag), spec.Basic.CancelOk).consumer_tag == tag
    gone(server, channel.connection, queue)


def test_a_queue_that_is_deleted_cancels_its_consumers(server, queue):
    channel, other = server.channel(), server.confirming()
    channel.declare(queue)
    tag = channel.consume(queue, consumer_tag="mine")
    assert tag == "mine"
    other.put(queue, b"1")
    delivered = channel.delivered().method.delivery_tag
    other.put(queue, b"2")
    channel.delivered()
    assert other.call(spec.Queue.Delete(0, queue), spec.Queue.DeleteOk).message_count == 0
    cancel = channel.next(spec.Basic.Cancel).method
    assert (cancel.consumer_tag, cancel.nowait) == ("mine", True)
    channel.send(spec.Basic.Ack(delivered))  # there is nothing wrong with it
    channel.nothing()
    assert other.call(spec.Queue.Delete(0, queue), spec.Queue.DeleteOk).message_count == 0


def test_a_queue_expires_when_nobody_uses_it(server, queue):
    channel = server.channel()
    channel.declare(queue, arguments={"x-expires": 200})
    tag = channel.consume(queue)
    server.carrier.pause(0.3)
    channel.call(spec.Basic.Cancel(tag), spec.Basic.CancelOk)
    assert channel.look(queue) == (0, 0)
    gone(server, channel.connection, queue, every=0.4)


def test_a_quorum_queue_is_durable(server, queue):
    quorum = spec.Queue.Declare(0, queue, arguments={"x-queue-type": "quorum"})
    text = "PRECONDITION_FAILED - invalid property 'non-durable' for queue"
    server.channel().refused(quorum, 406, text)


# Exchanges ------------------------------------------------------------------------------------


def test_exchanges_are_declared_and_bound(server, queue):
    channel, fanout, direct, other = (
        server.confirming(),
        server.name(),
        server.name(),
        server.name(),
    )
    missing = f"NOT_FOUND - no exchange '{fanout}' in vhost '/'"
    channel.refused(spec.Exchange.Declare(0, fanout, passive=True), 404, missing)
    channel.call(spec.Channel.Open(), spec.Channel.OpenOk)
    channel.confirms()
    for name, kind in ((fanout, "fanout"), (direct, "direct")):
        for passive in (False, False, True):
            declare = spec.Exchange.Declare(0, name, kind, passive, durable=True)
            channel.call(declare, spec.Exchange.DeclareOk)
    for name in (queue, other):
        channel.declare(name)
        channel.call(spec.Queue.Bind(0, name, fanout), spec.Queue.BindOk)
    channel.call(spec.Queue.Bind(0, queue, direct, "key"), spec.Queue.BindOk)
    channel.put("whatever", b"to all", exchange=fanout)
    channel.put("key", b"to one", exchange=direct)
    channel.put("none", b"to nobody", exchange=direct)
    assert channel.bodies(queue) == [b"to all", b"to one"]
    got = channel.get(other)
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == (fanout, "whatever")
    wrong = spec.Exchange.Declare(0, fanout, "direct", durable=True)
    channel.refused(
        wrong,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{fanout}' in vhost '/':"
        " received 'direct' but current is 'fanout'",
    )


def test_only_what_there_is_can_be_bound(server, queue):
    connection = server.connect()
    connection.channel().declare(queue)
    bind = spec.Queue.Bind(0, queue, server.name())
    connection.channel().refused(bind, 404, "NOT_FOUND - no exchange")
    exchange = server.name()
    channel = connection.channel()
    channel.call(spec.Exchange.Declare(0, exchange, "fanout"), spec.Exchange.DeclareOk)
    channel.refused(spec.Queue.Bind(0, server.name(), exchange), 404, "NOT_FOUND - no queue")


# Publishing -----------------------------------------------------------------------------------


def test_each_message_is_confirmed_once(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    for number in range(1, 21):
        channel.publish(queue, b"%d" % number, PERSISTENT if number % 3 else TRANSIENT)
    channel.acked(20)
    channel.nothing()
    assert channel.bodies(queue) == [b"%d" % number for number in range(1, 21)]


def test_what_nobody_gets_is_returned_before_its_ack_if_it_is_mandatory(server, queue):
    channel = server.confirming()
    properties = pika.BasicProperties(headers={"a": 1}, correlation_id="c", delivery_mode=2)
    channel.publish(queue, b"body", properties, mandatory=True)
    returned = channel.next(spec.Basic.Return)
    method = returned.method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key, returned.body) == ("", queue, b"body")
    assert (returned.properties.headers, returned.properties.correlation_id) == ({"a": 1}, "c")
    channel.acked(1)
    channel.publish(queue)
    channel.acked(2)
    channel.nothing()


def test_an_unknown_exchange_closes_the_channel(server):
    channel, name = server.confirming(), server.name()
    method = channel.publish("key", exchange=name)
    channel.closed(method, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


def test_a_body_may_be_too_large(server, queue):
    with server.limited():
        channel = server.confirming()
        channel.declare(queue)
        channel.put(queue, bytes(LARGEST))
        method = channel.publish(queue, bytes(LARGEST + 1))
        text = f"message size {LARGEST + 1} is larger than configured max size {LARGEST}"
        channel.closed(method, 406, f"PRECONDITION_FAILED - {text}")


def test_bodies_have_any_size(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    bodies = [b"", b"x", bytes(131_064), bytes(131_065), bytes(400_000)]
    channel.put(queue, *bodies)
    assert channel.bodies(queue) == bodies


def test_a_full_queue_refuses_what_is_published(server, queue):
    channel = server.confirming()
    channel.declare(queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.put(queue, b"1", b"2")
    channel.publish(queue, b"3", mandatory=True)
    nack = channel.next(spec.Basic.Nack).method
    assert nack.delivery_tag == 3
    assert channel.bodies(queue) == [b"1", b"2"]
    channel.publish(queue, b"4")
    ack = channel.next(spec.Basic.Ack).method
    assert ack.delivery_tag == 4


def test_a_full_queue_drops_the_oldest_by_default(server, queue):
    channel, dead = server.confirming(), server.name()
    channel.declare(dead)
    arguments = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.declare(queue, arguments=arguments)
    channel.put(queue, b"1", b"2")
    assert channel.look(queue) == (1, 0)
    consumer = server.channel()
    consumer.consume(dead, no_ack=True)
    letter = consumer.delivered()
    assert (letter.body, letter.properties.headers["x-death"][0]["reason"]) == (b"1", "maxlen")
    assert channel.bodies(queue) == [b"2"]


# Consuming ------------------------------------------------------------------------------------


def test_a_queue_is_read_one_by_one(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    assert channel.get(queue) is None
    channel.put(queue, b"1", b"2")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    assert (got.method.message_count, got.method.redelivered, got.body) == (1, False, b"1")
    channel.send(spec.Basic.Reject(got.method.delivery_tag, requeue=True))
    got = channel.get(queue, no_ack=False)
    assert got is not None and (got.method.redelivered, got.body) == (True, b"1")
    channel.send(spec.Basic.Ack(got.method.delivery_tag))
    got = channel.get(queue)
    assert got is not None
    assert (got.method.message_count, got.method.redelivered, got.body) == (0, False, b"2")


def test_consuming_what_is_not_there_or_is_exclusive_is_refused(server, queue):
    connection = server.connect()
    connection.channel().refused(spec.Basic.Consume(0, queue), 404, "NOT_FOUND - no queue")
    channel = connection.channel()
    channel.declare(queue)
    channel.consume(queue, exclusive=True)
    text = f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    connection.channel().refused(spec.Basic.Consume(0, queue), 403, text)


def test_prefetch_is_each_consumer_s(server, queue):
    channel, other = server.confirming(), server.name()
    for name in (queue, other):
        channel.declare(name)
        channel.put(name, b"1", b"2", b"3")
    channel.qos(2)
    for name in (queue, other):
        channel.consume(name)
    got = [channel.delivered() for _ in range(4)]
    assert sorted(each.method.routing_key for each in got) == sorted([queue, queue, other, other])
    assert [each.method.delivery_tag for each in got] == [1, 2, 3, 4]
    assert channel.look(queue) == channel.look(other) == (1, 1)
    channel.send(spec.Basic.Ack(1))
    assert channel.delivered().method.routing_key == got[0].method.routing_key


def test_prefetch_may_be_the_channel_s(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    channel.qos(2, whole=True)
    channel.consume(queue)
    assert [channel.delivered().body for _ in range(2)] == [b"1", b"2"]
    assert channel.look(queue) == (1, 1)
    channel.send(spec.Basic.Ack(0, multiple=True))
    assert channel.delivered().body == b"3"


def test_consumers_get_messages_in_turn(server, queue):
    channel, publisher = server.channel(), server.confirming()
    channel.declare(queue)
    tags = {channel.consume(queue), channel.consume(queue)}
    publisher.put(queue, b"1", b"2", b"3", b"4")
    got = [channel.delivered().method.consumer_tag for _ in range(4)]
    assert set(got) == tags and got[:2] == got[2:]


def test_what_goes_back_comes_first_and_is_marked(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    channel.qos(2)
    channel.consume(queue)
    first, second = channel.delivered(), channel.delivered()
    channel.send(spec.Basic.Nack(first.method.delivery_tag, requeue=True))
    again = channel.delivered()
    assert (again.body, again.method.redelivered) == (b"1", True)
    channel.send(spec.Basic.Ack(again.method.delivery_tag, multiple=True))  # the second, too
    third = channel.delivered()
    assert (third.body, third.method.redelivered) == (b"3", False)
    assert second.method.redelivered is False
    channel.send(spec.Basic.Ack(third.method.delivery_tag))
    channel.nothing()


def test_a_cancelled_consumer_keeps_what_it_has(server, queue):
    channel = server.confirming()
    channel.declare(queue)
    tag = channel.consume(queue)
    channel.publish(queue, b"1")
    kinds = {type(channel.connection.next(channel.number).method) for _ in range(2)}
    assert kinds == {spec.Basic.Ack, spec.Basic.Deliver}
    channel.call(spec.Basic.Cancel(tag), spec.Basic.CancelOk)
    channel.call(spec.Basic.Cancel(tag), spec.Basic.CancelOk)  # that is no error
    assert channel.look(queue) == (0, 0)
    channel.send(spec.Basic.Reject(1, requeue=True))
    assert channel.bodies(queue) == [b"1"]


@pytest.mark.parametrize("end", ["channel", "connection", "vanish"])
def test_what_is_not_acknowledged_comes_again_in_its_order(server, queue, end):
    publisher = server.confirming()
    publisher.declare(queue)
    channel = server.channel()
    channel.consume(queue)
    publisher.put(queue, b"1", b"2", b"3")
    for _ in range(3):
        channel.delivered()
    channel.send(spec.Basic.Ack(2))
    channel.nothing()
    publisher.consume(queue, no_ack=True)
    if end == "channel":
        channel.call(spec.Channel.Close(200, "", 0, 0), spec.Channel.CloseOk)
    elif end == "connection":
        channel.connection.close()
    else:
        channel.connection.vanish()
    got = [publisher.delivered() for _ in range(2)]
    assert [(each.body, each.method.redelivered) for each in got] == [(b"1", True), (b"3", True)]


@pytest.mark.parametrize(
    "method",
    [spec.Basic.Ack(7), spec.Basic.Ack(7, multiple=True), spec.Basic.Nack(7), spec.Basic.Reject(7)],
    ids=["ack", "multiple", "nack", "reject"],
)
def test_only_what_was_delivered_can_be_settled(server, queue, method):
    text = "PRECONDITION_FAILED - unknown delivery tag 7"
    server.channel().refused(method, 406, text)


# What becomes of messages ---------------------------------------------------------------------


def dead_letters(server: Server, queue: str, **arguments: Any) -> tuple[Channel, Channel]:
    """Declare a queue whose dead letters a consumer gets; return a publisher and that consumer."""
    channel, consumer, exchange, dead = (
        server.confirming(),
        server.channel(),
        server.name(),
        server.name(),
    )
    channel.call(spec.Exchange.Declare(0, exchange, "fanout"), spec.Exchange.DeclareOk)
    channel.declare(dead)
    channel.call(spec.Queue.Bind(0, dead, exchange), spec.Queue.BindOk)
    channel.declare(queue, arguments={"x-dead-letter-exchange": exchange, **arguments})
    consumer.consume(dead, no_ack=True)
    return channel, consumer


def test_a_rejected_message_is_a_dead_letter_and_says_why(server, queue):
    channel, consumer = dead_letters(server, queue)
    properties = pika.BasicProperties(headers={"id": "t"}, correlation_id="t", delivery_mode=2)
    channel.put(queue, b"body", properties=properties)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.send(spec.Basic.Reject(got.method.delivery_tag, requeue=False))
    letter = consumer.delivered()
    assert (letter.body, letter.method.routing_key) == (b"body", queue)
    assert letter.method.redelivered is False
    headers = letter.properties.headers
    (death,) = headers["x-death"]
    assert headers["id"] == letter.properties.correlation_id == "t"
    assert letter.properties.delivery_mode == 2
    assert (death["count"], death["reason"], death["queue"]) == (1, "rejected", queue)
    assert (death["exchange"], death["routing-keys"]) == ("", [queue])
    assert "time" in death
    names = ("x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
    assert [headers[name] for name in names] == ["rejected", queue, ""]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("of", ["queue", "message", "both"])
def test_a_message_that_waits_for_too_long_is_a_dead_letter(server, queue, kind, of):
    arguments: dict[str, Any] = {"x-queue-type": kind}
    if of != "message":
        arguments["x-message-ttl"] = 50 if of == "queue" else 60_000
    channel, consumer = dead_letters(server, queue, **arguments)
    expiration = None if of == "queue" else "50"
    channel.put(
        queue, b"body", properties=pika.BasicProperties(delivery_mode=2, expiration=expiration)
    )
    letter = consumer.delivered()
    (death,) = letter.properties.headers["x-death"]
    assert (letter.body, death["reason"], letter.properties.expiration) == (
        b"body",
        "expired",
        None,
    )
    assert death.get("original-expiration") == expiration
    assert channel.look(queue) == (0, 0)


def test_a_message_with_a_limit_is_delivered_before_it(server, queue):
    channel, _ = dead_letters(server, queue, **{"x-message-ttl": 60_000})
    channel.put(queue, b"1", properties=pika.BasicProperties(expiration="60000"))
    got = channel.get(queue)
    assert got is not None and got.properties.expiration == "60000"


def test_without_an_exchange_for_them_they_are_gone(server, queue):
    channel = server.confirming()
    channel.declare(queue, arguments={"x-message-ttl": 1})
    channel.put(queue, b"1")
    until(server.carrier, lambda: channel.look(queue) == (0, 0))
    other = server.name()
    channel.declare(other, arguments={"x-dead-letter-exchange": server.name()})
    channel.put(other, b"1")
    got = channel.get(other, no_ack=False)
    assert got is not None
    channel.send(spec.Basic.Reject(got.method.delivery_tag, requeue=False))
    channel.nothing()
    assert channel.look(other) == (0, 0)


@pytest.mark.parametrize("how", ["reject", "vanish"])
def test_a_quorum_queue_counts_deliveries_up_to_its_limit(server, queue, how):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    channel, consumer = dead_letters(server, queue, **arguments)
    channel.put(queue, b"poison", properties=TRANSIENT)
    counts = []
    for number in range(3):
        if how == "vanish" or not number:
            worker = server.channel()
            worker.qos(1)
            worker.consume(queue)
        got = worker.delivered()
        headers = got.properties.headers or {}
        counts.append((headers.get("x-delivery-count"), got.method.redelivered))
        if how == "reject":
            worker.send(spec.Basic.Reject(got.method.delivery_tag, requeue=True))
        else:
            worker.connection.vanish()
    assert counts == [(None, False), (1, True), (2, True)]
    letter = consumer.delivered()
    death = letter.properties.headers["x-death"][0]
    assert (letter.body, death["reason"], death["queue"]) == (b"poison", "delivery_limit", queue)
    assert channel.look(queue)[0] == 0


def test_a_quorum_queue_gives_back_in_order(server, queue):
    channel = server.confirming()
    channel.declare(queue, arguments={"x-queue-type": "quorum"})
    channel.put(queue, b"1", b"2", b"3")
    worker = server.channel()
    worker.qos(2)
    worker.consume(queue)
    assert [worker.delivered().body for _ in range(2)] == [b"1", b"2"]
    worker.connection.vanish()
    worker = server.channel()
    worker.consume(queue)
    assert [worker.delivered().body for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_full_quorum_queue_refuses_what_is_published(server, queue):
    """It refuses a little late, as its limit is reported to publishers."""
    channel = server.confirming()
    arguments = {"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "reject-publish"}
    channel.declare(queue, arguments=arguments)
    kinds = []
    while spec.Basic.Nack not in kinds:
        channel.publish(queue, b"1")
        kinds.append(type(channel.connection.next(channel.number).method))
        assert len(kinds) < 20
    assert kinds[:2] == [spec.Basic.Ack, spec.Basic.Ack]
    assert len(channel.bodies(queue)) == len(kinds) - 1


def test_what_is_durable_outlives_a_restart(server, queue):
    channel, transient, own, exchange, other = (
        server.confirming(),
        server.name(),
        server.name(),
        server.name(),
        server.name(),
    )
    quorum = server.name()
    channel.declare(queue)
    channel.declare(quorum, arguments={"x-queue-type": "quorum"})
    channel.declare(transient, durable=False)
    channel.declare(own, exclusive=True)
    for name, durable in ((exchange, True), (other, False)):
        declare = spec.Exchange.Declare(0, name, "fanout", durable=durable)
        channel.call(declare, spec.Exchange.DeclareOk)
        channel.call(spec.Queue.Bind(0, queue, name), spec.Queue.BindOk)
    channel.put(queue, b"1", b"2")
    channel.put(queue, b"transient", properties=TRANSIENT)
    channel.put(quorum, b"transient", properties=TRANSIENT)
    worker = server.channel()
    worker.qos(1)
    worker.consume(queue)
    worker.delivered()
    server.restart()
    channel = server.confirming()
    for name, kind in ((transient, "queue"), (own, "queue"), (other, "exchange")):
        looking = channel.connection.channel()
        looking.refused(
            spec.Queue.Declare(0, name, passive=True)
            if kind == "queue"
            else spec.Exchange.Declare(0, name, passive=True),
            404,
            f"NOT_FOUND - no {kind}",
        )
    got = channel.get(queue)
    assert got is not None and (got.body, got.method.redelivered) == (b"1", True)
    assert channel.bodies(queue) == [b"2"]
    until(server.carrier, lambda: channel.bodies(quorum) == [b"transient"])
    channel.put("any", b"3", exchange=exchange)
    assert channel.bodies(queue) == [b"3"]

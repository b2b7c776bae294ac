"""What becomes of a message that cannot be begun, by what the broker says of its dead letter."""

from __future__ import annotations

from types import SimpleNamespace

import amqp
import pytest
from celery import Celery
from celery.concurrency import get_implementation
from celery.exceptions import TaskRevokedError
from kombu.common import QoS
from kombu.exceptions import OperationalError
from kombu.message import Message

import appserver
from appserver import dead_letters, poison
from appserver.consumer import PromptConsumer
from appserver.lost_results import lost_results
from appserver.poison import PATIENCE, PoisonAwareTasks

HEADERS = {"task": "echo", "id": "1"}


class Broken:
    """A pool that cannot pickle a task, or is broken in itself."""

    active = True

    def __init__(self, error: Exception):
        self.error = error

    def apply_async(self, *args, **options):
        raise self.error


class World:
    """A worker's strategy for one task; `later`, `settled` and `letters` have what it has done."""

    def __init__(self, monkeypatch, pool):
        self.app = Celery("shop", backend="disabled://", broker="memory://", set_as_current=False)
        appserver.setup(self.app)

        @self.app.task(name="echo", shared=False)
        def echo(): ...

        self.letters, self.later, self.settled, self.confirms = [], [], [], True
        self.channel = amqp.Channel.__new__(amqp.Channel)
        self.qos = QoS(lambda prefetch_count: None, 4)
        monkeypatch.setattr(dead_letters, "publish", self._publish)
        PoisonAwareTasks(None).create(SimpleNamespace(app=self.app))
        self.pool = pool
        self.task = self.app.tasks["echo"]

    def _publish(self, app, properties, body, why, timeout):
        if not self.confirms:
            raise OperationalError("not now")
        self.letters.append(why["reason"])

    def execute(self, request):
        try:
            request.execute_using_pool(self.pool)
        except TaskRevokedError:
            self.settled.append("place")

    def begin(self, body, **headers):
        consumer = SimpleNamespace(
            app=self.app, hostname="w", connection_errors=(), event_dispatcher=None,
            pool=self.pool, qos=self.qos,
            timer=SimpleNamespace(call_at=None, call_after=lambda *call: self.later.append(call)),
            apply_eta_task=None, disable_rate_limits=True, task_buckets={}, _limit_task=None,
            on_task_request=self.execute, _limit_post_eta=None,
            controller=SimpleNamespace(state=SimpleNamespace(revoked=set())),
        )  # fmt: skip
        strategy = self.task.start_strategy(self.app, consumer)
        message = self.message(body, headers)
        strategy(message, None, self.settle("acknowledged"), message.reject_log_error, ())

    def settle(self, how, message=None):
        def note(log, errors, requeue=False):
            self.settled.append((how, requeue))
            if message:
                message._state = "ACK"

        return note

    def message(self, body, headers):
        message = Message(
            body=body, channel=self.channel, content_type="application/json",
            content_encoding="utf-8", delivery_info={"exchange": "", "routing_key": "q"},
            headers={**HEADERS, **headers}, properties={},
        )  # fmt: skip
        message.ack_log_error = self.settle("acknowledged at once", message)
        message.reject_log_error = self.settle("rejected", message)
        return message


@pytest.fixture
def world(monkeypatch):
    world = World(monkeypatch, Broken(TypeError("cannot pickle")))
    yield world
    world.app.close()


@pytest.mark.parametrize(
    "body", ["[1]", "[[], {}, {}]", "[{}, {}, {}]", "[[], [], {}]", "[[], {}, 5]"]
)
@pytest.mark.parametrize("acks_late", [True, False])
def test_it_is_acknowledged_after_its_dead_letter_is_confirmed(world, body, acks_late):
    world.task.acks_late = acks_late
    world.begin(body)
    assert world.letters == ["unusable"] and world.later == []
    assert [how for how in world.settled if how != "place"] == [("acknowledged", False)]


@pytest.mark.parametrize("body", ["[1]", "[[], {}, {}]"])
def test_it_returns_to_its_queue_after_a_while_where_it_is_not_confirmed(world, body):
    world.confirms = False
    world.begin(body)
    assert ("acknowledged", False) not in world.settled
    ((seconds, *call),) = world.later
    # What is behind it is begun. What a pool could not take has no consumer at hand.
    assert world.qos.value == 4 + (body == "[1]")
    call[0](*(call[1] if call[1:] else ()))
    assert seconds == PATIENCE and world.settled[-1] == ("rejected", True)
    assert world.qos.value == 4


@pytest.mark.parametrize("body", ["[1]", "[[], {}, {}]"])
def test_of_another_broker_than_amqps_it_is_celerys(world, body):
    world.channel = None
    with pytest.raises((TypeError, ValueError)):
        world.begin(body)
    assert (world.letters, world.settled) == ([], [])


@pytest.mark.parametrize("limits", [5, [1], ["1", None], [None, {}]])
def test_limits_of_no_task_make_a_dead_letter(world, limits):
    world.begin("[[], {}, {}]", timelimit=limits)
    assert (world.letters, world.settled) == (["unusable"], [("acknowledged", False)])


@pytest.mark.parametrize(
    ("headers", "letters"),
    [({"task": ["echo"]}, 1), ({"task": "unknown", "id": None}, 0), ({"task": "unknown"}, 0)],
)
def test_what_is_no_known_task_s_ends_no_worker(world, monkeypatch, headers, letters):
    consumer = PromptConsumer.__new__(PromptConsumer)
    consumer.app, consumer.strategies, consumer.connection_errors = world.app, {}, ()
    consumer.on_task_message, consumer.event_dispatcher = (), None
    monkeypatch.setattr(world.app.backend, "mark_as_failure", lambda id, *args, **options: id[0])

    consumer.create_task_handler()(world.message("[[], {}, {}]", headers))

    assert len(world.letters) == letters
    assert world.settled == [("acknowledged at once" if letters else "rejected", False)]
    assert lost_results(world.app).number == (headers.get("id", "1") is None)


def test_an_error_of_the_pool_is_not_one_of_the_message(world):
    world.pool = Broken(OSError("broken pipe"))
    with pytest.raises(OSError, match="broken pipe"):
        world.begin("[[], {}, {}]")
    assert (world.letters, world.settled) == ([], [])


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_only_solo_acknowledges_at_once_what_is_acknowledged_early(world, monkeypatch, pool):
    current = SimpleNamespace(_get_current_object=lambda: world.app)
    monkeypatch.setattr("celery.app.trace.current_app", current)
    world.pool, world.task.acks_late = get_implementation(pool)(1), False
    world.pool.start()
    world.begin("[[], {}, {}]")
    world.pool.stop()
    assert world.settled == [("acknowledged at once" if pool == "solo" else "acknowledged", False)]


def test_a_task_keeps_a_strategy_of_its_own(monkeypatch):
    app = Celery("shop", set_as_current=False)
    appserver.setup(app)

    class Batch(app.Task):
        name = "batch"
        Strategy = f"{__name__}:own"

    app.register_task(Batch())
    PoisonAwareTasks(None).create(SimpleNamespace(app=app))
    task = app.tasks["batch"]
    assert isinstance(task, poison.PoisonAware) and task.Strategy == f"{__name__}:own"
    app.close()

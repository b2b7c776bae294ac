"""Workers answer over AMQP, store in Redis, or both, in every pool and through every ending."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import uuid
from pathlib import Path

import pika
import pytest
from celery import Celery

import appserver
from appserver.poison import BEGUN_AGAIN
from gateway.stack.server import poll
from tests.faults.proxy import Proxy
from tests.faults.servers import channel
from tests.support.stack import Server, StackError, shared
from tests.support.waiting import until

ROOT = str(Path(appserver.__file__).parents[1])
TIMEOUT = 20  # seconds
CLOSED = "The connection for replies is given up"
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

# What a project of its own has: one line makes its workers answer.
SHOP = """\
import os, signal
import appserver
import redis
from celery import Celery
from celery.exceptions import Reject
from celery.result import allow_join_result
from kombu import Exchange, Queue
from appserver.reply_connection import reply_connection

RESULTS = os.environ["GATEWAY_RESULT_BACKEND"]
app = Celery("shop", broker=os.environ["GATEWAY_BROKER_URL"], backend=RESULTS)
appserver.setup(app)
if "LIMITED" in os.environ:
    app.conf.redis_max_connections = 1
if "QUORUM" in os.environ:
    app.conf.task_queues = [Queue(os.environ["QUORUM"], Exchange(""), os.environ["QUORUM"],
        queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 2,
                         "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "shop.dead"})]

@app.task
def echo(query, headers, body):
    return body

class Noting(app.Task):
    def before_start(self, task_id, args, kwargs):
        redis.Redis.from_url(RESULTS).incr(f"begun {task_id}")

@app.task(bind=True, base=Noting)
def noted(self, query, headers, body):
    begun = redis.Redis.from_url(RESULTS).get(f"begun {self.request.id}")
    return appserver.Answer(body=int(begun))

@app.task(base=Noting)
def die_noted(query, headers, body):
    die(query, headers, body)

@app.task(time_limit=1)
def overrun(query, headers, body):
    signal.pause()

@app.task
def die(query, headers, body):
    redis.Redis.from_url(RESULTS).incr(body)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
def gate(query, headers, body):
    if query:
        redis.Redis.from_url(RESULTS, socket_timeout=None).blpop(query["gate"])
    return body

@app.task
def refuse(query, headers, body):
    raise Reject("as asked")

@app.task(bind=True, max_retries=1)
def again(self, query, headers, body):
    if not self.request.retries:
        raise self.retry(countdown=0)
    return body

@app.task
def asks(query, headers, body):
    with allow_join_result():
        return echo.apply_async([{}, {}, body], queue=query["queue"]).get(timeout=20)

@app.task(bind=True)
def fork(self, query, headers, body):
    pid = os.fork()
    if not pid:
        reply_connection(app).publish_all([(self.request.reply_to, "from the child", b"{}")])
        reply_connection(app).close()
        os._exit(0)
    os.waitpid(pid, 0)
    return body
"""


class Requester:
    """A gateway reduced to publishing a task and reading its own reply queue."""

    def __init__(self, url: str, queue: str):
        # kombu writes the virtual host / as an empty path or //, pika as %2F.
        self._connection = pika.BlockingConnection(pika.URLParameters(url.rstrip("/") + "/%2F"))
        self._channel = self._connection.channel()
        self.queue, self.reply_to = queue, f"gateway.reply.{uuid.uuid4()}"
        self._channel.queue_declare(self.reply_to, exclusive=True)
        self._replies: dict[str, tuple[pika.BasicProperties, dict]] = {}
        self._channel.basic_consume(self.reply_to, self._on_reply, auto_ack=True)

    def _on_reply(self, channel, method, properties, body):
        self._replies[properties.correlation_id] = properties, json.loads(body)

    def send(self, task, body="hello", query=None, store=False, reply_to=None, delivery=True):
        task_id = str(uuid.uuid4())
        headers = {"task": task, "id": task_id, "argsrepr": "", "kwargsrepr": ""}
        if delivery:
            headers["delivery"] = {"id": task_id, "store": store}
        properties = pika.BasicProperties(
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=task_id,
            reply_to=reply_to or self.reply_to,
            headers=headers,
        )
        message = json.dumps([[query or {}, {}, body], {}, EMBED])
        self._channel.basic_publish("", self.queue, message.encode(), properties)
        return task_id

    def reply(self, task_id):
        deadline = time.monotonic() + TIMEOUT
        while task_id not in self._replies and time.monotonic() < deadline:
            self._connection.process_data_events(0.1)
        return self._replies.pop(task_id)

    def call(self, task, body="hello", **options):
        return self.reply(self.send(task, body, **options))[1]

    def replied(self, task_id):
        self._connection.process_data_events(0)
        return task_id in self._replies

    def close(self):
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):
            self._connection.close()


class Store:
    """The Redis that workers store in."""

    def __init__(self, server: Server):
        self.client = server.client

    def now(self, task_id):
        value = self.client.get(f"celery-task-meta-{task_id}")
        return value and json.loads(value)

    def meta(self, task_id):
        until(lambda: self.now(task_id))
        return self.now(task_id)


@pytest.fixture
def store(redis_server):
    return Store(redis_server)


@pytest.fixture(scope="module")
def workers(stack, rabbitmq, redis_server, tmp_path_factory):
    """Start a worker on a queue of its own, once for each way of starting it."""
    directory = tmp_path_factory.mktemp("shop")
    (directory / "shop.py").write_text(SHOP)

    @shared
    def start(app, pool, results, queue, variable, stream):
        queue = queue or f"test-{uuid.uuid4()}"
        results = redis_server.url if results is None else results
        env = {"PYTHONPATH": ROOT, "GATEWAY_WORKER_STREAM": stream}
        if variable:
            env[variable] = queue
        options = {"concurrency": 2, "queues": [queue], "env": env, "cwd": directory}
        return queue, stack.worker(rabbitmq.url, results, app, pool, **options)

    return start


@pytest.fixture
def worker(workers, rabbitmq):
    """Return a worker and a new requester; `variable` tells the worker its queue's name."""
    requesters = []

    def start(app="appserver", pool="solo", results=None, queue=None, variable=None, stream="1"):
        queue, server = workers(app, pool, results, queue, variable, stream)
        requesters.append(Requester(rabbitmq.url, queue))
        return server, requesters[-1]

    yield start
    for requester in requesters:
        requester.close()


@pytest.fixture
def celery(stack, rabbitmq, redis_server):
    """Start a worker with options of Celery's own; return it with its name."""

    def start(*options, app="appserver", ready="ready.", cwd=None):
        node = f"test-{uuid.uuid4().hex}@localhost"
        argv = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", node, "-l", "INFO"]
        env = {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}
        env["PYTHONPATH"] = ROOT
        return stack.spawn("worker", [*argv, *options], env=env, cwd=cwd, ready=ready), node

    return start


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent", "eventlet"])
def test_replies_in_every_pool(worker, store, pool):
    server, requester = worker(pool=pool)

    ids = {requester.send("api.core.main", f"body {n}"): f"body {n}" for n in range(20)}

    for task_id, body in ids.items():
        properties, meta = requester.reply(task_id)
        assert properties.content_type == "application/json"
        assert properties.content_encoding == "utf-8"
        assert properties.delivery_mode == 1
        assert meta["status"] == "SUCCESS"
        assert meta["result"] == body
        assert meta["task_id"] == task_id
        assert store.now(task_id) is None
    assert "Traceback" not in server.output()


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_worker_of_greenlets_that_sends_events_ends_at_once(celery, rabbitmq, tmp_path, pool):
    """Its heartbeats and tasks send events at the same time as its loop reads their connection."""
    (tmp_path / "shop.py").write_text(SHOP)
    queue = f"test-{uuid.uuid4()}"
    options = ["-E", "-P", pool, "-c", "10", "-Q", queue]
    server, _ = celery(*options, app="shop", cwd=tmp_path)
    requester = Requester(rabbitmq.url, queue)
    ids = [requester.send("shop.echo", f"body {n}") for n in range(100)]
    assert [requester.reply(task_id)[1]["status"] for task_id in ids] == ["SUCCESS"] * 100
    requester.close()

    server.signal(signal.SIGTERM)

    ended = poll(lambda: not server.alive(), TIMEOUT)
    server.kill()
    assert ended and "Traceback" not in server.output()


@pytest.mark.parametrize("app", ["appserver", "shop"])
def test_greenlets_share_their_connections_to_the_store(worker, store, app):
    _, requester = worker(app, pool="gevent")
    task = {"appserver": "appserver.tasks.echo", "shop": "shop.echo"}[app]
    requester.call(task, store=True)
    before = store.client.info("stats")["total_connections_received"]

    ids = {requester.send(task, f"body {n}", store=True): f"body {n}" for n in range(100)}

    assert {task_id: store.meta(task_id)["result"] for task_id in ids} == ids
    # A connection for each of the two tasks at a time, and no more than a few that come again.
    assert store.client.info("stats")["total_connections_received"] < before + 10


def test_a_limit_of_connections_to_the_store_stops_no_greenlet(worker, store):
    _, requester = worker("shop", pool="gevent", variable="LIMITED")
    ids = {requester.send("shop.echo", f"{n}", store=True): f"{n}" for n in range(200)}
    assert {task_id: store.meta(task_id)["result"] for task_id in ids} == ids


def test_greenlets_may_wait_for_other_tasks_at_the_same_time(worker):
    _, other = worker("shop", queue="others")
    _, requester = worker("shop", pool="gevent")

    bodies = [f"body {n}" for n in range(40)]
    ids = [requester.send("shop.asks", body, {"queue": other.queue}) for body in bodies]

    assert [requester.reply(task_id)[1]["result"] for task_id in ids] == bodies


def test_reply_has_what_the_store_has(worker, store):
    _, requester = worker()
    for task, body, query in [
        ("appserver.tasks.echo", {"__type__": "base64", "__value__": "/wA="}, {}),
        ("appserver.tasks.echo", "é\u2028", {}),
        ("appserver.tasks.large", "", {"bytes": "400000"}),
        ("appserver.tasks.fail", "", {}),
    ]:
        task_id = requester.send(task, body, query=query, store=True)
        reply, stored = requester.reply(task_id)[1], store.meta(task_id)
        assert reply.pop("date_done")[:10] == stored.pop("date_done")[:10]
        assert reply == stored
    assert reply["status"] == "FAILURE"
    assert reply["result"]["exc_type"] == "TaskFailure"


def test_request_without_headers_is_replied_and_stored(worker, store):
    _, requester = worker()

    task_id = requester.send("appserver.tasks.echo", delivery=False)

    assert requester.reply(task_id)[1]["result"] == "hello"
    assert store.meta(task_id)["result"] == "hello"


def test_unknown_task_is_replied_and_stored(worker, store):
    _, requester = worker()

    task_id = requester.send("no.such.task")

    meta = requester.reply(task_id)[1]
    assert (meta["status"], meta["result"]["exc_type"]) == ("FAILURE", "NotRegistered")
    assert store.meta(task_id)["result"] == meta["result"]


def test_without_a_store_replies_remain(worker):
    server, requester = worker(results="")

    assert requester.call("appserver.tasks.echo", store=True)["result"] == "hello"
    assert "disabled://" in server.output()


def test_lost_store_does_not_contradict_the_reply(worker):
    server, requester = worker(results="redis://127.0.0.1:1/0")

    task_id = requester.send("appserver.tasks.echo", store=True)

    assert requester.reply(task_id)[1]["status"] == "SUCCESS"
    assert requester.call("appserver.tasks.echo")["status"] == "SUCCESS"
    assert not requester.replied(task_id)
    assert "was replied, but could not be stored" in server.output()


def test_reply_survives_a_closed_connection(worker, rabbitmq):
    server, requester = worker()
    assert requester.call("appserver.tasks.echo")["status"] == "SUCCESS"

    def connections() -> set[str]:
        return set(rabbitmq.ctl("list_connections", "pid", "--no-table-headers").split())

    before = connections()
    rabbitmq.ctl("close_all_connections", "for the test")
    until(lambda: not before & connections())  # RabbitMQ 4 does not wait for that

    _, requester = worker()

    def closed() -> bool:
        """Has the worker noticed it? It looks before it replies, and the end may come later."""
        assert requester.call("appserver.tasks.echo")["status"] == "SUCCESS"
        return CLOSED in server.output()

    until(closed)


def test_worker_waits_until_its_own_queue_is_free(celery, rabbitmq):
    node = f"locked-{uuid.uuid4().hex}@localhost"
    # Given a broker that takes a connection for alive that the worker has lost,
    parameters = pika.URLParameters(rabbitmq.url.rstrip("/") + "/%2F")
    with pika.BlockingConnection(parameters) as held:
        held.channel().queue_declare(f"{node}.celery.pidbox", exclusive=True)
        worker, _ = celery("-n", node, "-P", "solo", ready="RESOURCE_LOCKED")
    # when it knows better,
    assert poll(lambda: f"{node} ready." in worker.output(), TIMEOUT)
    # then the worker serves.


def test_worker_on_redis_stores(stack, redis_server, store):
    queue = f"test-{uuid.uuid4()}"
    stack.worker(redis_server.url, redis_server.url, queues=[queue], env={"PYTHONPATH": ROOT})
    with Celery(broker=redis_server.url, set_as_current=False) as client:
        result = client.send_task(
            "api.core.main", ({}, {}, "hello"), queue=queue, reply_to="gateway.reply.nobody"
        )
    assert store.meta(result.id)["result"] == "hello"


def test_named_queues_are_quorum_queues_with_dead_letters(worker, rabbitmq):
    name = f"test-{uuid.uuid4()}"
    _, requester = worker(queue=name, variable="GATEWAY_QUEUES")

    assert requester.call("appserver.tasks.echo")["result"] == "hello"
    queues = rabbitmq.ctl("list_queues", "-q", "name", "type", "arguments")
    line = next(line for line in queues.splitlines() if line.startswith(name))
    assert "quorum" in line
    assert re.search(r'"x-delivery-limit",\s*(signedint,)?\s*20', line)
    assert "gateway.dead" in line
    assert "gateway.dead\tquorum" in queues


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_own_app_replies_and_stores(worker, store, pool):
    server, requester = worker("shop", pool=pool)

    ids = {requester.send("shop.echo", f"body {n}", store=n % 2): n for n in range(20)}

    for task_id, n in ids.items():
        assert requester.reply(task_id)[1]["result"] == f"body {n}"
        assert store.meta(task_id)["result"] == f"body {n}" if n % 2 else not store.now(task_id)
    # A base class of its own has its say.
    assert requester.call("shop.noted")["result"] == {"status": 200, "headers": {}, "body": 1}
    others = requester.send("shop.echo", reply_to=str(uuid.uuid4()))
    assert store.meta(others)["result"] == "hello"
    assert "Traceback" not in server.output()


def test_own_app_replies_from_the_main_process(worker):
    _, requester = worker("shop", pool="prefork")

    meta = requester.call("shop.overrun")

    assert (meta["status"], meta["result"]["exc_type"]) == ("FAILURE", "TimeLimitExceeded")
    assert requester.call("shop.echo")["status"] == "SUCCESS"


@pytest.mark.parametrize("task", ["shop.die", "shop.die_noted"])
def test_poison_on_a_classic_queue_ends(worker, store, task):
    _, requester = worker("shop", pool="prefork")
    runs = str(uuid.uuid4())

    meta = requester.call(task, runs)

    assert (meta["status"], meta["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
    assert requester.call("shop.echo")["status"] == "SUCCESS"
    assert int(store.client.get(runs)) == 1 + BEGUN_AGAIN


def test_poison_on_a_quorum_queue_is_the_queues_own_matter(worker, store, rabbitmq):
    dead = Requester(rabbitmq.url, "shop.dead")
    dead._channel.queue_declare("shop.dead", durable=True)
    runs = str(uuid.uuid4())
    _, requester = worker("shop", "prefork", variable="QUORUM")

    task_id = requester.send("shop.die", runs)

    until(lambda: dead._channel.queue_declare("shop.dead", passive=True).method.message_count)
    _, properties, _ = dead._channel.basic_get("shop.dead", auto_ack=True)
    assert properties.headers["id"] == task_id
    assert int(store.client.get(runs)) == 3
    assert not requester.replied(task_id)
    dead.close()


@pytest.mark.parametrize(
    ("backend", "told"), [("rpc://", "RPCBackend"), ("cache+memory://", "CacheBackend")]
)
def test_own_app_with_results_elsewhere_does_not_start(stack, rabbitmq, tmp_path, backend, told):
    (tmp_path / "shop.py").write_text(SHOP)
    with pytest.raises(StackError) as refused:
        stack.worker(rabbitmq.url, backend, "shop", cwd=tmp_path, env={"PYTHONPATH": ROOT})
    assert told in str(refused.value) and "set result_backend to" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_task_events_come_with_heartbeats(celery, rabbitmq):
    """Flower takes a worker whose heartbeats it does not hear for dead."""
    _, node = celery("-E", "-P", "solo")
    heard = []

    def hear(event):
        heard.append(event["hostname"])
        receiver.should_stop = True

    with (
        Celery(broker=rabbitmq.url, set_as_current=False) as client,
        client.connection_for_read() as link,
    ):
        receiver = client.events.Receiver(link, handlers={"worker-heartbeat": hear})
        receiver.capture(timeout=TIMEOUT, wakeup=False)
    assert heard == [node]


def test_retry_keeps_its_requester(worker):
    _, requester = worker("shop")

    assert requester.call("shop.again")["status"] == "SUCCESS"


def test_fork_leaves_the_parents_connection_alone(worker):
    server, requester = worker("shop")
    requester.call("shop.echo")
    before = server.output().count(CLOSED)

    task_id = requester.send("shop.fork")

    assert requester.reply("from the child")
    assert requester.reply(task_id)[1]["status"] == "SUCCESS"
    requester.call("shop.echo")
    assert server.output().count(CLOSED) == before


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_results_of_a_turn_are_stored_though_redis_is_restarted(stack, worker, pool):
    own = stack.redis()
    server, requester = worker(pool=pool, results=own.url)
    store = Store(own)
    # Given results that are to be stored by a worker that has stored before,
    store.meta(requester.send("appserver.tasks.echo", reply_to="nobody"))
    own.kill()
    ids = [requester.send("appserver.tasks.echo", reply_to="nobody") for _ in range(40)]
    try:
        # when Redis is back after tasks have ended,
        until(lambda: "refused" in server.output())
        own.restart()

        # then none of them is lost.
        assert {store.meta(each)["status"] for each in ids} == {"SUCCESS"}
        assert "is lost" not in server.output()
    finally:
        server.kill()


def states(rabbitmq, server):
    """Return the states that RabbitMQ tells of the connections of this very server."""
    sockets = (one for process in server.family() for one in process.net_connections())
    ports = {str(one.laddr.port) for one in sockets}
    listed = rabbitmq.ctl("list_connections", "-q", "peer_port", "state")
    return {state for port, state in map(str.split, listed.splitlines()) if port in ports}


def test_alarm_moves_results_to_the_store(worker, store, rabbitmq):
    # Given a worker of which no connection but that for replies has published,
    server, requester = worker("shop", queue=f"test-{uuid.uuid4()}")
    requester.call("shop.echo")
    gates = [{"gate": f"{requester.queue} {n}"} for n in range(2)]
    first, second = (requester.send("shop.gate", query=gate) for gate in gates)

    with rabbitmq.alarm():
        # RabbitMQ takes one more message of each connection that knows of the alarm, and blocks it.
        until(lambda: states(rabbitmq, server) == {"blocking"})
        store.client.lpush(f"{requester.queue} 0", "go")
        until(lambda: "blocked" in states(rabbitmq, server))
        store.client.lpush(f"{requester.queue} 1", "go")

        assert store.meta(second)["status"] == "SUCCESS"
        assert "The broker blocks replies" in server.output()
    assert requester.reply(first)[1]["status"] == "SUCCESS"
    assert requester.call("shop.echo")["status"] == "SUCCESS"
    assert store.now(first) is None


def test_a_worker_of_quorum_queues_does_without_a_node_of_its_list(stack, rabbitmq, redis_server):
    """Celery's own tries to declare there for 17 s before it consumes."""
    away = re.sub(r":\d+/", ":1/", rabbitmq.url)
    environment = {"GATEWAY_QUEUES": "listed"}
    worker = stack.worker(
        f"{rabbitmq.url};{away}", redis_server.url, queues=("listed",), env=environment
    )
    worker.stop()
    output = worker.output()
    assert "Retrying delayed delivery" not in output
    assert "Failed to setup delayed delivery" not in output


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_frozen_node_is_left_and_replies_go_by_another(stack, rabbitmq, redis_server, pool):
    queue, (port,) = f"frozen-{pool}", re.findall(r":(\d+)/", rabbitmq.url)
    nodes = {str(node.port): node for node in (Proxy(int(port)), Proxy(int(port)))}
    urls = ";".join(rabbitmq.url.replace(f":{port}/", f":{node}/") for node in nodes)
    worker = stack.worker(urls, redis_server.url, pool=pool, queues=(queue,))
    requester = Requester(rabbitmq.url, queue)
    assert requester.call("appserver.tasks.echo")["status"] == "SUCCESS"  # by the same node

    (first,) = re.findall(r"Connected to amqp://\S+:(\d+)//", worker.output())
    nodes[first].stall()
    until(lambda: worker.output().count("Connected to") == 2)
    # The broker does not know yet that the first connection is lost, and gives it some of them.
    sent = [requester.send("appserver.tasks.echo") for _ in range(4)]
    until(lambda: any(map(requester.replied, sent)))

    output = worker.output()
    assert "The broker does not answer: its connection is given up" in output
    assert "The connection for replies is given up" in output
    assert "Cannot connect" not in output  # as it is not tried before the other
    assert re.findall(r"Connected to amqp://\S+:(\d+)//", output)[-1] != first
    requester.close()
    for node in nodes.values():
        node.close()


def test_the_other_queues_are_consumed_while_the_node_of_a_classic_one_is_down(stack, redis_server):
    nodes = stack.rabbitmq_cluster(3)
    with channel(nodes[0]) as amqp:
        amqp.queue_declare("celery", durable=True, auto_delete=False)
    urls = ";".join(node.url for node in nodes[1:])
    worker = stack.worker(
        urls, redis_server.url, queues=("celery", "named"), env={"GATEWAY_QUEUES": "named"}
    )
    named = Requester(nodes[1].url, "named")
    assert named.call("appserver.tasks.echo")["status"] == "SUCCESS"

    nodes[0].kill()
    until(lambda: "The queue celery is not consumed until the broker takes it" in worker.output())
    assert named.call("appserver.tasks.echo")["status"] == "SUCCESS"
    nodes[0].restart()
    until(lambda: "Started consuming from celery" in worker.output())
    celery = Requester(nodes[1].url, "celery")
    assert celery.call("appserver.tasks.echo")["status"] == "SUCCESS"

    for requester in (named, celery):
        requester.close()


# Many messages at once ----------------------------------------------------------------------


def at_once(server, *sends):
    """Let all messages be there before the worker reads one."""
    os.kill(server.pid, signal.SIGSTOP)
    ids = [send() for send in sends]
    os.kill(server.pid, signal.SIGCONT)
    return ids


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_messages_of_any_size_are_read(worker, rabbitmq, pool, switch):
    server, requester = worker("shop", pool, stream=switch)
    bodies = ["x" * size for size in (0, 300_000, 1, 65_000, 131_000, 5_000, 140_000, 64_000)] * 3

    ids = at_once(server, *[lambda body=body: requester.send("shop.gate", body) for body in bodies])

    assert [requester.reply(task_id)[1]["result"] for task_id in ids] == bodies
    # Then all are acknowledged, so that nothing would run again.
    until(lambda: messages(rabbitmq, requester.queue) == 0)


def messages(rabbitmq, queue: str) -> int:
    """Return how many messages are in the queue or not acknowledged."""
    listed = rabbitmq.ctl("list_queues", "name", "messages", "--no-table-headers").split()
    return int(listed[listed.index(queue) + 1])


def test_what_cannot_be_run_stops_nothing(worker, rabbitmq):
    server, requester = worker("shop")

    def publish(body: bytes, content_type: str = "application/json", **headers) -> None:
        headers = {"task": "shop.gate", "id": str(uuid.uuid4()), **headers}
        properties = pika.BasicProperties(
            content_type=content_type, content_encoding="utf-8", headers=headers
        )
        requester._channel.basic_publish("", requester.queue, body, properties)

    call = json.dumps([[{}, {}, "x"], {}, {}]).encode()
    at_once(
        server,
        lambda: publish(b"no JSON"),
        lambda: publish(call, "application/x-python-serialize"),
        lambda: publish(call, eta="never"),
        lambda: publish(call, task="unknown"),
        lambda: requester.send("shop.refuse"),
    )

    assert requester.call("shop.gate")["result"] == "hello"
    until(lambda: messages(rabbitmq, requester.queue) == 0)

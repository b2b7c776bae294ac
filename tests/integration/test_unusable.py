"""A message that no worker can begin is a dead letter; one that stock workers run is run."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from gateway.stack.server import poll
from tests.support.stack import RabbitMQ

TIMEOUT = 30  # seconds
DEAD = "gateway.dead"

SHOP = """\
import os, threading
import appserver
from celery import Celery
from kombu.utils.json import register_type

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
appserver.setup(app)
# Nothing that is decoded like this can be pickled.
register_type(type(threading.Lock()), "lock", lambda lock: "", lambda text: threading.Lock())

@app.task(name="echo")
def echo(*args):
    return str(args[0])
"""
LOCK = {"__type__": "lock", "__value__": ""}
NO_TASK = ([1], [], {}, 5, None, "x", [1, 2], [[], {}, {}, 4], [{}, {}, {}], [[], [], {}])
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class Client:
    """Publishes messages of its own making, and reads replies and dead letters."""

    def __init__(self, broker: RabbitMQ):
        self._url, self.queue, self.server = broker.url, f"unusable-{uuid.uuid4()}", None
        parameters = pika.URLParameters(broker.url.rstrip("/") + "/%2F")
        self._connection = pika.BlockingConnection(parameters)
        self.channel = self._connection.channel()
        self.channel.queue_declare(self.queue, durable=True)
        self._reply_to = f"gateway.reply.{uuid.uuid4()}"
        self.channel.queue_declare(self._reply_to, exclusive=True)
        self._replies: dict[str, dict[str, Any]] = {}

    def send(self, body: bytes, encoding: str = "utf-8", **headers: Any) -> str:
        task_id = str(uuid.uuid4())
        properties = pika.BasicProperties(
            content_type="application/json",
            content_encoding=encoding,
            correlation_id=task_id,
            reply_to=self._reply_to,
            headers={"task": "echo", "id": task_id, "delivery": {"id": "x"}, **headers},
        )
        self.channel.basic_publish("", self.queue, body, properties)
        return task_id

    def echo(self, argument: Any, **options: Any) -> str:
        return self.send(json.dumps([[argument], {}, EMBED]).encode(), **options)

    def get(self, queue: str) -> tuple[pika.BasicProperties, Any] | None:
        _, properties, body = self.channel.basic_get(queue, auto_ack=True)
        return properties and (properties, body)

    def reply(self, task_id: str) -> dict[str, Any]:
        """Return the reply of the task; tasks in greenlets may end in another order."""

        def come() -> bool:
            if found := self.get(self._reply_to):
                self._replies[found[0].correlation_id] = json.loads(found[1])
            return task_id in self._replies

        assert poll(come, TIMEOUT)
        return self._replies.pop(task_id)

    def close(self) -> None:
        self.channel.queue_delete(self.queue)
        self._connection.close()


@pytest.fixture(scope="module", params=["solo", "prefork", "threads", "gevent", "celery's reading"])
def client(request, stack, own_rabbitmq, redis_server, tmp_path_factory) -> Iterator[Client]:
    """A worker of each pool, and one whose messages are read as Celery reads them."""
    directory = tmp_path_factory.mktemp("unusable")
    (directory / "shop.py").write_text(SHOP)
    client = Client(own_rabbitmq)
    client.pool = "solo" if "celery" in request.param else request.param
    env = {"BROKER": own_rabbitmq.url, "RESULTS": redis_server.url}
    env |= {"GATEWAY_WORKER_STREAM": "0"} if "celery" in request.param else {}
    options = {"queues": [client.queue], "env": env, "cwd": directory, "app": "shop"}
    client.server = stack.worker(own_rabbitmq.url, pool=client.pool, concurrency=1, **options)
    yield client
    client.server.kill()
    client.close()


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16", "UTF-8", "cp1252"])
def test_json_in_any_encoding_is_run(client, encoding):
    body = json.dumps([["é"], {}, EMBED], ensure_ascii=False).encode(encoding)
    assert client.reply(client.send(body, encoding))["result"] == "é"
    assert client.get(DEAD) is None


def test_a_body_of_no_task_is_a_dead_letter_and_a_failure(client):
    for body in NO_TASK:
        encoded = json.dumps(body).encode()
        task_id = client.send(encoded)
        outcome = client.reply(task_id)
        assert (outcome["status"], outcome["result"]["exc_type"]) == ("FAILURE", "InvalidTaskError")
        kept(client, task_id, encoded)
    assert client.reply(client.echo("next"))["result"] == "next"


@pytest.mark.parametrize(
    "headers", [{"timelimit": 5}, {"timelimit": [1]}, {"timelimit": ["1", "1"]}, {"task": ["echo"]}]
)
def test_headers_of_no_task_make_a_dead_letter(client, headers):
    task_id = client.echo("x", **headers)
    assert client.reply(task_id)["status"] == "FAILURE"
    kept(client, task_id)
    assert client.reply(client.echo("next"))["result"] == "next"


def test_a_message_without_a_usable_id_is_a_dead_letter(client):
    for task in ("echo", "unknown"):
        client.send(b"[1]", id=[1], task=task)
        if task == "echo":
            assert poll(lambda: (letter := client.get(DEAD)) and letter[1] == b"[1]", TIMEOUT)
    assert client.reply(client.echo("next"))["result"] == "next"


def test_a_compressed_message_can_be_run_from_the_dead_letters(client):
    body = json.dumps([["long"], {}, EMBED]).encode()
    gzip = {"compression": "application/x-gzip"}
    task_id = client.send(zlib.compress(body), timelimit=[1], **gzip)
    assert client.reply(task_id)["status"] == "FAILURE"
    headers = kept(client, task_id, body)
    assert headers["dead_letter"]["compression"] == gzip["compression"]
    del headers["id"], headers["timelimit"]
    assert client.reply(client.send(body, **headers))["result"] == "long"


@pytest.mark.parametrize("eta", [None, "2020-01-01T00:00:00+00:00"])
def test_what_cannot_be_pickled_is_a_dead_letter_where_it_has_to_be(client, eta):
    ids = [client.echo(LOCK, eta=eta) for _ in range(3)]
    for task_id in ids:
        outcome = client.reply(task_id)
        if client.pool == "prefork":
            assert (outcome["status"], outcome["result"]["exc_type"]) == ("FAILURE", "TypeError")
            kept(client, task_id)
        else:
            assert "lock" in outcome["result"].lower()
    assert client.reply(client.echo("next"))["result"] == "next"
    assert client.get(DEAD) is None


def kept(client: Client, task_id: str, body: bytes | None = None) -> dict[str, Any]:
    """See that the message is the next dead letter, and its worker runs; return its headers."""
    letter: list[Any] = []
    assert poll(lambda: bool(letter.append(client.get(DEAD)) or letter[-1]), TIMEOUT)
    properties, found = letter[-1]
    assert properties.headers["id"] == task_id and body in (None, found)
    assert properties.headers["dead_letter"]["reason"] == "unusable"
    assert properties.headers["dead_letter"]["routing_key"] == client.queue
    assert client.server.alive()
    headers: dict[str, Any] = properties.headers
    return headers

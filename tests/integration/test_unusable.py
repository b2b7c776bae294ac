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
from tests.integration.test_appserver import EMBED, Requester

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


class Client(Requester):
    """Publishes messages of its own making, and reads replies and dead letters."""

    def __init__(self, url: str):
        super().__init__(url, f"unusable-{uuid.uuid4()}")
        self._channel.queue_declare(self.queue, durable=True)

    def publish(
        self,
        body: bytes,
        encoding: str = "utf-8",
        kind: str = "application/json",
        mode: int | None = None,
        **headers: Any,
    ) -> str:
        task_id = str(uuid.uuid4())
        properties = pika.BasicProperties(
            content_type=kind,
            content_encoding=encoding,
            delivery_mode=mode,
            correlation_id=task_id,
            reply_to=self.reply_to,
            headers={"task": "echo", "id": task_id, "delivery": {"id": "x"}, **headers},
        )
        self._channel.basic_publish("", self.queue, body, properties)
        return task_id

    def echo(self, argument: Any, **options: Any) -> str:
        return self.publish(json.dumps([[argument], {}, EMBED]).encode(), **options)

    def outcome(self, task_id: str) -> dict[str, Any]:
        return self.reply(task_id)[1]

    def letter(self) -> tuple[pika.BasicProperties, bytes] | None:
        _, properties, body = self._channel.basic_get(DEAD, auto_ack=True)
        return properties and (properties, body)

    def close(self) -> None:
        self._channel.queue_delete(self.queue)
        super().close()


@pytest.fixture(scope="module", params=["solo", "prefork", "threads", "gevent", "celery's reading"])
def client(request, stack, own_rabbitmq, redis_server, tmp_path_factory) -> Iterator[Client]:
    """A worker of each pool, and one whose messages are read as Celery reads them."""
    directory = tmp_path_factory.mktemp("unusable")
    (directory / "shop.py").write_text(SHOP)
    client = Client(own_rabbitmq.url)
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
    assert client.outcome(client.publish(body, encoding))["result"] == "é"
    assert client.letter() is None


def test_a_body_of_no_task_is_a_dead_letter_and_a_failure(client):
    for body in NO_TASK:
        encoded = json.dumps(body).encode()
        task_id = client.publish(encoded)
        outcome = client.outcome(task_id)
        assert (outcome["status"], outcome["result"]["exc_type"]) == ("FAILURE", "InvalidTaskError")
        kept(client, task_id, encoded)
    assert client.outcome(client.echo("next"))["result"] == "next"


@pytest.mark.parametrize(
    "headers", [{"timelimit": 5}, {"timelimit": [1]}, {"timelimit": ["1", "1"]}, {"task": ["echo"]}]
)
def test_headers_of_no_task_make_a_dead_letter(client, headers):
    task_id = client.echo("x", **headers)
    assert client.outcome(task_id)["status"] == "FAILURE"
    kept(client, task_id)
    assert client.outcome(client.echo("next"))["result"] == "next"


@pytest.mark.parametrize(
    ("how", "error"),
    [({"task": "unknown"}, "NotRegistered"), ({"kind": "application/x-yaml"}, "ContentDisallowed")],
)
def test_what_this_worker_does_not_take_is_kept_where_it_was_accepted(client, how, error):
    task_id = client.echo("x", mode=2, **how)
    assert client.outcome(task_id)["result"]["exc_type"] == error
    kept(client, task_id)
    client.echo("x", mode=1, **how)  # its sender gets an error, and nothing was promised
    assert client.outcome(client.echo("next"))["result"] == "next"
    assert client.letter() is None


def test_a_message_without_a_usable_id_is_a_dead_letter(client):
    for task in ("echo", "unknown"):
        client.publish(b"[1]", id=[1], task=task)
        if task == "echo":
            assert poll(lambda: (letter := client.letter()) and letter[1] == b"[1]", TIMEOUT)
    assert client.outcome(client.echo("next"))["result"] == "next"


def test_a_compressed_message_can_be_run_from_the_dead_letters(client):
    body = json.dumps([["long"], {}, EMBED]).encode()
    gzip = {"compression": "application/x-gzip"}
    task_id = client.publish(zlib.compress(body), timelimit=[1], **gzip)
    assert client.outcome(task_id)["status"] == "FAILURE"
    headers = kept(client, task_id, body)
    assert headers["dead_letter"]["compression"] == gzip["compression"]
    del headers["id"], headers["timelimit"]
    assert client.outcome(client.publish(body, **headers))["result"] == "long"


@pytest.mark.parametrize("eta", [None, "2020-01-01T00:00:00+00:00"])
def test_what_cannot_be_pickled_is_a_dead_letter_where_it_has_to_be(client, eta):
    ids = [client.echo(LOCK, eta=eta) for _ in range(3)]
    for task_id in ids:
        outcome = client.outcome(task_id)
        if client.pool == "prefork":
            assert (outcome["status"], outcome["result"]["exc_type"]) == ("FAILURE", "TypeError")
            kept(client, task_id)
        else:
            assert "lock" in outcome["result"].lower()
    assert client.outcome(client.echo("next"))["result"] == "next"
    assert client.letter() is None


def kept(client: Client, task_id: str, body: bytes | None = None) -> dict[str, Any]:
    """See that the message is the next dead letter, and its worker runs; return its headers."""
    letter: list[Any] = []
    assert poll(lambda: bool(letter.append(client.letter()) or letter[-1]), TIMEOUT)
    properties, found = letter[-1]
    assert properties.headers["id"] == task_id and body in (None, found)
    assert properties.headers["dead_letter"]["reason"] == "unusable"
    assert properties.headers["dead_letter"]["routing_key"] == client.queue
    assert client.server.alive()
    headers: dict[str, Any] = properties.headers
    return headers

"""The examples in docs/wire.md are what the gateway and the app server send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import amqp
import pytest

from gateway.answer import of_outcome
from gateway.outcome import SUCCESS, Outcome
from tests.docs.test_documents import text
from tests.support.requests import post
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

EXAMPLES = {
    name: json.loads(block)
    for name, block in re.findall(r"```json (\w+)\n(.*?)```", text("docs/wire.md"), re.S)
}
#: What is different each time: of these only the type is compared.
VOLATILE = {
    "correlation_id", "date_done", "expires", "id", "origin", "received_at", "reply_to", "root_id",
    "task_id", "traceback",
}  # fmt: skip
REPLIES = "gateway.reply.of-a-test"


@pytest.fixture
def channel(own_rabbitmq: RabbitMQ) -> Iterator[amqp.Channel]:
    address = own_rabbitmq.url.removeprefix("amqp://guest:guest@").rstrip("/")
    with amqp.Connection(address) as connection:
        yield connection.channel()


def steady(value: Any) -> Any:
    """Return `value` with the type in place of what is different each time."""
    if isinstance(value, dict):
        return {
            name: type(each).__name__ if name in VOLATILE else steady(each)
            for name, each in value.items()
        }
    return [steady(each) for each in value] if isinstance(value, list) else value


def taken(channel: amqp.Channel, queue: str) -> amqp.Message:
    found: list[amqp.Message] = []
    until(lambda: found.extend(filter(None, [channel.basic_get(queue, no_ack=True)])) or found)
    return found[0]


def test_the_message_is_what_the_gateway_publishes(stack: Stack, own_rabbitmq, channel):
    gateway = stack.gateway("--strategy=pika", "--broker", own_rabbitmq.url)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(post, f"{gateway.url}/?tag=a&tag=b")
        message = taken(channel, "celery")
        result = {**EXAMPLES["answer"]}
        channel.basic_publish(
            amqp.Message(
                json.dumps({"status": "SUCCESS", "result": result}),
                correlation_id=message.properties["correlation_id"],
            ),
            routing_key=message.properties["reply_to"],
        )
        given = answer.result()

    properties = dict(message.properties)
    headers, body = properties.pop("application_headers"), json.loads(message.body)
    assert headers["id"] == headers["root_id"] == properties["correlation_id"]
    assert properties["reply_to"].startswith("gateway.reply.")
    assert "host" in body[0][1]
    body[0][1] = EXAMPLES["message"]["body"][0][1]  # which the client chooses
    real = {"properties": properties, "headers": headers, "body": body}
    assert steady(real) == steady(EXAMPLES["message"])
    assert (given.code, given.body, given.headers["Location"]) == (201, b"created", "/orders/7")


def test_the_answer_is_one():
    answer = of_outcome(Outcome(SUCCESS, EXAMPLES["answer"]))
    assert (answer.status, answer.body) == (201, b"created")
    assert answer.headers == {"Location": "/orders/7"}


def test_the_results_are_what_the_app_server_stores_and_replies(
    stack: Stack, own_rabbitmq: RabbitMQ, redis_server: Server, channel
):
    stack.worker(own_rabbitmq.url, redis_server.url)
    channel.queue_declare(REPLIES, exclusive=True)
    cases = {
        "success": {"task": "api.core.main"},
        "failure": {"task": "appserver.tasks.fail"},
        "expired": {"task": "api.core.main", "expires": "2020-01-01T00:00:00+00:00"},
    }
    for name, headers in cases.items():
        task_id = str(uuid4())
        channel.basic_publish(
            amqp.Message(
                json.dumps([[{}, {}, "hello"], {}, {}]),
                content_type="application/json",
                content_encoding="utf-8",
                correlation_id=task_id,
                reply_to=REPLIES,
                application_headers={"id": task_id, **headers},
            ),
            routing_key="celery",
        )
        reply = taken(channel, REPLIES)
        assert reply.properties["correlation_id"] == task_id
        assert steady(json.loads(reply.body)) == steady(EXAMPLES[name]), name

"""Questions between gateways, over the broker."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pika
import pytest

from gateway.amqp.remote_control import RemoteControl


class Channel:
    def __init__(self):
        self.published = []

    def basic_publish(self, exchange, routing_key, body, properties):
        self.published.append((exchange, routing_key, json.loads(body), properties.headers))


def published(body: bytes) -> list[tuple]:
    """Return what a gateway that has the first of the names publishes after a message."""
    control = RemoteControl(SimpleNamespace(connection=None), lambda names: list(names)[:1])
    properties = pika.BasicProperties(headers={"ticket": "t", "reply_to": "another"})
    channel = Channel()
    control._on_message(channel, None, properties, body)
    return channel.published


def test_a_question_that_comes_while_the_channel_is_opened_is_answered():
    assert published(b'["one", "two"]') == [("", "another", ["one"], {"ticket": "t"})]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000], ids=["none", "{", "ff", "["])
def test_a_message_that_is_not_json_is_ignored_and_leaves_a_line_for_who_debugs(body, caplog):
    with caplog.at_level(logging.DEBUG):
        assert published(body) == []
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "is not JSON, and is ignored" in record.getMessage()

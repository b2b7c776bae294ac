"""Questions between gateways, over the broker."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pika

from gateway.amqp.remote_control import RemoteControl


class Channel:
    def __init__(self):
        self.published = []

    def basic_publish(self, exchange, routing_key, body, properties):
        self.published.append((exchange, routing_key, json.loads(body), properties.headers))


def test_a_question_that_comes_while_the_channel_is_opened_is_answered():
    control = RemoteControl(SimpleNamespace(connection=None), lambda names: list(names)[:1])
    properties = pika.BasicProperties(headers={"ticket": "t", "reply_to": "another"})
    channel = Channel()
    control._on_message(channel, None, properties, b'["one", "two"]')
    assert channel.published == [("", "another", ["one"], {"ticket": "t"})]

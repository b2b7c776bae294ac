"""Questions over the broker: to workers, of lost results, and between gateways."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pika
import pytest

from gateway.amqp import broker, pidbox, worker_watch, workers
from gateway.amqp.publisher import Publisher
from gateway.amqp.remote_control import RemoteControl
from gateway.amqp.worker_watch import LOST, WorkerWatch
from gateway.amqp.workers import Answers, Lost, Worker
from gateway.config.settings import Config


@pytest.mark.parametrize(
    ("stats", "lost"),
    [
        ({"lost_results": {"number": 3}}, Lost(3, 0)),
        ({"lost_results": {"number": 3, "last": 1e9}}, Lost(3, 1e9)),
        ({"pool": {}}, None),
        ({"lost_results": {"number": "3"}}, None),
        ({"lost_results": {"number": -1}}, None),
        ({"lost_results": {"number": 3, "last": 1e300}}, None),
        ({"lost_results": {"number": 10**400}}, None),
        ({"lost_results": 3}, None),
        ("x", None),
        (None, None),
    ],
)
def test_only_the_app_servers_workers_tell_a_number(stats, lost):
    worker = Worker()
    worker.take("stats", stats)
    assert worker.lost == lost


async def test_each_look_sets_the_sum_of_those_that_answer(metrics, monkeypatch):
    answers = [
        [{"a": {"lost_results": {"number": 3}}}, {"b": {"lost_results": {"number": 4}, "x": 1}}],
        [],
        pika.exceptions.AMQPError("closed"),
        [{"a": {"lost_results": {"number": 5}}, "b": {"pool": {}}}, [], None],
    ]
    seen, looked = [], asyncio.Event()

    async def ask(_connection, _question):
        seen.append(metrics.get(LOST))
        if not answers:
            looked.set()
            await asyncio.Event().wait()
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        found = Answers()
        for each in answer:
            found.take("stats", each)
        return found

    async def open_channel(_connection):
        raise pika.exceptions.AMQPError("closed")

    monkeypatch.setattr(worker_watch, "ask_one", ask)
    monkeypatch.setattr(worker_watch, "PAUSE", 0)
    monkeypatch.setattr(worker_watch, "CONSUMERS", 0)
    monkeypatch.setattr(broker, "open_channel", open_channel)
    one = WorkerWatch(Config(), SimpleNamespace(connection=object()), metrics)
    await one.start()
    await looked.wait()
    await one.stop()
    assert seen == [0, 7, 7, 7, 5]


async def test_nothing_is_revoked_after_the_end(metrics, monkeypatch):
    async def open_channel(_connection):
        return SimpleNamespace(is_open=True, add_on_close_callback=id, basic_publish=sent.append)

    sent = []
    monkeypatch.setattr(broker, "open_channel", open_channel)
    monkeypatch.setattr(pidbox, "_COLLECT", 0)
    publisher = Publisher(Config(), metrics)
    publisher._revocations = pidbox.Revocations(SimpleNamespace(writable=True))
    publisher._error = ""
    publisher.revoke("1")
    await publisher.stop()
    assert (sent, len(asyncio.all_tasks())) == ([], 1)


async def test_answers_to_a_question_that_the_broker_returns_are_not_waited_for(monkeypatch):
    class Channel:
        def __init__(self, own):
            pass

        async def open(self):
            return self

        async def ask(self, question, arguments):
            return False

    monkeypatch.setattr(broker, "own_channel", nullcontext)
    monkeypatch.setattr(workers, "ReplyChannel", Channel)
    assert (await workers.ask_one(None, "stats")).workers == {}


# Questions between gateways -----------------------------------------------------------------------


class Channel:
    def __init__(self):
        self.published = []

    def basic_publish(self, exchange, routing_key, body, properties):
        self.published.append((exchange, routing_key, json.loads(body), properties.headers))


def published(body: bytes, ticket: object = "t", reply_to: object = "another") -> list[tuple]:
    """Return what a gateway that has the first of the names publishes after a message."""
    control = RemoteControl(SimpleNamespace(connection=None), lambda names: list(names)[:1])
    properties = pika.BasicProperties(headers={"ticket": ticket, "reply_to": reply_to})
    channel = Channel()
    control._on_message(channel, None, properties, body)
    return channel.published


def test_a_question_that_comes_while_the_channel_is_opened_is_answered():
    assert published(b'["one", "two"]') == [("", "another", ["one"], {"ticket": "t"})]


@pytest.mark.parametrize("long", ["\U0001f600" * 300, b"\0" * 40_000, ["x" * 300]])
def test_what_no_gateway_asks_is_answered_with_what_amqp_allows(long):
    for about in ({"reply_to": long}, {"ticket": long}):
        ((_, routing_key, _, headers),) = published(b'["one"]', **about)
        assert len(routing_key.encode()) <= 255 and len(headers["ticket"].encode()) <= 255


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000], ids=["none", "{", "ff", "["])
def test_a_message_that_is_not_json_is_ignored_and_leaves_a_line_for_who_debugs(body, caplog):
    with caplog.at_level(logging.DEBUG):
        assert published(body) == []
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "is not JSON, and is ignored" in record.getMessage()

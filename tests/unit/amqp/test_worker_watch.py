"""Workers are asked how many results they have lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pika
import pytest

from gateway.amqp import broker, pidbox, worker_watch
from gateway.amqp.worker_watch import LOST, Lost, WorkerWatch, lost_results
from gateway.config.settings import Config
from gateway.metrics import Metrics


@pytest.mark.parametrize(
    ("stats", "lost"),
    [
        ({"lost_results": {"number": 3}}, Lost(3, 0)),
        ({"lost_results": {"number": 3, "last": 1e9}}, Lost(3, 1e9)),
        ({"pool": {}}, None),
        ({"lost_results": {"number": "3"}}, None),
        ({"lost_results": {"number": -1}}, None),
        ({"lost_results": {"number": 3, "last": 1e300}}, None),
        ({"lost_results": 3}, None),
        ("x", None),
        (None, None),
    ],
)
def test_only_the_app_servers_workers_tell_a_number(stats, lost):
    assert lost_results(stats) == lost


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_not_json_says_nothing(body):
    assert pidbox.decode(body) is None


async def test_each_look_sets_the_sum_of_those_that_answer(monkeypatch):
    answers = [
        [{"a": {"lost_results": {"number": 3}}}, {"b": {"lost_results": {"number": 4}, "x": 1}}],
        [],
        pika.exceptions.AMQPError("closed"),
        [{"a": {"lost_results": {"number": 5}}, "b": {"pool": {}}}, [], None],
    ]
    seen, looked = [], asyncio.Event()

    async def ask(_connection):
        seen.append(metrics.get(LOST))
        if not answers:
            looked.set()
            await asyncio.Event().wait()
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    async def open_channel(_connection):
        raise pika.exceptions.AMQPError("closed")

    monkeypatch.setattr(worker_watch, "_ask", ask)
    monkeypatch.setattr(worker_watch, "PAUSE", 0)
    monkeypatch.setattr(worker_watch, "CONSUMERS", 0)
    monkeypatch.setattr(broker, "open_channel", open_channel)
    metrics = Metrics()
    one = WorkerWatch(Config(), SimpleNamespace(connection=object()), metrics)
    await one.start()
    await looked.wait()
    await one.stop()
    assert seen == [0, 7, 7, 7, 5]
    metrics.close()

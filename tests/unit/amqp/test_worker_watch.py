"""Workers are asked how many results they have lost."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pika
import pytest

from gateway.amqp import worker_watch
from gateway.amqp.worker_watch import LOST, WorkerWatch, _lost
from gateway.metrics import Metrics


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ({"a": {"lost_results": {"number": 3}}, "b": {"lost_results": {"number": 4}}}, [3, 4]),
        ({"a": {"pool": {}}}, []),
        ({"a": {"lost_results": {"number": "3"}}}, []),
        ({"a": {"lost_results": 3}}, []),
        ({"a": {"error": "x"}, "b": None}, []),
        ([], []),
    ],
)
def test_only_the_app_servers_workers_tell_a_number(said, numbers):
    assert list(_lost(json.dumps(said).encode())) == numbers
    assert list(_lost(b"{")) == []


def test_each_look_sets_the_sum_of_those_that_answer(monkeypatch):
    answers = [
        [b'{"a": {"lost_results": {"number": 3}}}', b'{"b": {"lost_results": {"number": 4}}}'],
        [],
        pika.exceptions.AMQPError("closed"),
        [b'{"a": {"lost_results": {"number": 5}}}'],
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

    async def watch() -> None:
        one = WorkerWatch(SimpleNamespace(connection=object()), metrics)
        await one.start()
        await looked.wait()
        await one.stop()

    monkeypatch.setattr(worker_watch, "_ask", ask)
    monkeypatch.setattr(worker_watch, "PAUSE", 0)
    metrics = Metrics()
    asyncio.run(WorkerWatch(SimpleNamespace(connection=None), metrics).look())
    asyncio.run(watch())
    assert seen == [0, 7, 7, 7, 5]
    metrics.close()

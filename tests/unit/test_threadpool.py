"""The strategy `threadpool` while all of its threads wait."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.strategies.threadpool_strategy import ThreadPool


def messages() -> int:
    gc.collect()
    return sum(isinstance(each, Message) for each in gc.get_objects())


def test_the_message_of_a_sender_that_has_left_is_not_kept(monkeypatch, uncollected):
    monkeypatch.setattr(ThreadPool, "_admit", lambda *_: None)
    strategy, busy = object.__new__(ThreadPool), threading.Event()
    strategy._loop = object()
    with ThreadPoolExecutor(1) as strategy._pool:
        strategy._pool.submit(busy.wait)
        before = messages()
        for number in range(3):
            message = Message(str(number), "task", "queue", b"[]", {})
            strategy.send(message, monotonic() + 60).abandon()
        del message
        assert messages() == before
        busy.set()

"""Relays whose tasks end at once, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.answer import Answer
from gateway.celery_message import TaskIds
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.failpoints import Failpoint
from gateway.metrics import Metrics
from gateway.relay.context import Context
from gateway.relay.relay import Relay
from tests.support.in_memory import InMemory, echo


class Relaying:
    """A relay, its strategy, and the answers that it has given."""

    def __init__(self, settings: dict[str, Any]):
        config = Config(**settings)
        self.metrics = Metrics(routes=[route.path for route in config.routes])
        self.strategy, self.given = InMemory(echo), list[Answer]()
        context = Context(config, self.strategy, self.metrics, TaskIds(), Failpoint())
        self.relay = Relay(context)

    def send(self, request: Request) -> Answer:
        self.relay.relay(request, self.given.append)
        return self.given[-1]


@pytest.fixture(scope="module")
def relaying() -> Iterator[Callable[..., Relaying]]:
    """Make relays with such settings."""
    with ExitStack() as opened:

        def make(**settings: Any) -> Relaying:
            made = Relaying(settings)
            opened.callback(made.metrics.close)
            return made

        yield make

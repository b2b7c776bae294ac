"""librabbitmq, which is written in C: a blocking connection in each thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import librabbitmq

from loadtest.lab.consumers.drivers import Broker, Run
from loadtest.lab.consumers.drivers.threads import consume_by
from loadtest.lab.consumers.part import Part


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with librabbitmq, which is used as py-amqp is."""
    consume_by(_connect, broker, parts, prefetch, run)


def _connect(broker: Broker) -> Any:
    return librabbitmq.Connection(
        broker["hostname"],
        userid=broker["userid"],
        password=broker["password"],
        virtual_host=broker["virtual_host"],
        port=broker["port"],
    )

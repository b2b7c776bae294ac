"""What a strategy's INFO says of its connections is so."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES, properties
from tests.support.stack import RabbitMQ, Stack
from tests.support.waiting import until

#: Those whose connections are opened at the start, and not by the first requests.
AT_START = [name for name in STRATEGIES if not properties(name).publishing]


@pytest.mark.parametrize("strategy", AT_START)
def test_a_process_has_as_many_connections_to_redis_as_it_says(
    strategy: str, stack: Stack, rabbitmq: RabbitMQ
):
    store = stack.redis()
    urls = ("--broker", rabbitmq.url, "--result-backend", store.url)
    gateway = stack.gateway("--strategy", strategy, *urls)
    with store.client as client:
        # Beside this client's there is one of the parent's.
        told, found = properties(strategy).reading, lambda: len(client.client_list()) - 2
        until(lambda: found() == told, 5, lambda: f"INFO: reading={told}, and it has {found()}")
    gateway.stop()
    store.stop()

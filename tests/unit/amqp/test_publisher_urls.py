"""Which broker of a list a process connects to first."""

from __future__ import annotations

from itertools import islice

from gateway.amqp.publisher import Publisher
from gateway.config.settings import Config
from gateway.metrics import Metrics


def test_processes_begin_with_different_nodes_and_go_on_in_turn():
    urls = ["amqp://a", "amqp://b", "amqp://c"]
    metrics = Metrics()
    orders = set()
    for _ in range(100):
        publisher = Publisher(Config(broker_url=urls), metrics)
        order = tuple(islice(publisher._brokers, 4))
        assert publisher.url == order[0] == order[3]
        orders.add("".join(url[-1] for url in order[:3]))
    assert orders == {"abc", "bca", "cab"}
    metrics.close()

"""The publisher that goes with the configured broker."""

from __future__ import annotations

from gateway.coalescing import Coalescing
from gateway.config import Config
from gateway.kombu_publisher import KombuPublisher
from gateway.metrics import Metrics
from gateway.publisher import Publisher


def publisher_for(
    config: Config, metrics: Metrics, coalescing: Coalescing | None = None
) -> Publisher | KombuPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    if config.amqp:
        return Publisher(config, metrics, coalescing=coalescing)
    return KombuPublisher(config, metrics)

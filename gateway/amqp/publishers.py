"""The publisher that goes with the configured broker."""

from __future__ import annotations

from gateway.amqp.kombu_publisher import KombuPublisher
from gateway.amqp.publisher import Publisher
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling


def publisher_for(
    config: Config, metrics: Metrics, throttling: ReadThrottling | None = None
) -> Publisher | KombuPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    if config.amqp:
        return Publisher(config, metrics, throttling=throttling)
    return KombuPublisher(config, metrics)

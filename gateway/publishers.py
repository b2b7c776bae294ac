"""The publisher that goes with the configured broker."""

from __future__ import annotations

from gateway.config import Config
from gateway.kombu_publisher import KombuPublisher
from gateway.metrics import Metrics
from gateway.publisher import Publisher


def publisher_for(config: Config, metrics: Metrics) -> Publisher | KombuPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    return (Publisher if config.amqp else KombuPublisher)(config, metrics)

"""The publisher that goes with the configured broker."""

from __future__ import annotations

from collections.abc import Sized

from gateway.config import Config
from gateway.kombu_publisher import KombuPublisher
from gateway.metrics import Metrics
from gateway.publisher import Publisher


def publisher_for(
    config: Config, metrics: Metrics, waiting: Sized = ()
) -> Publisher | KombuPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    if config.amqp:
        return Publisher(config, metrics, waiting=waiting)
    return KombuPublisher(config, metrics)

"""Choose the publisher for the configured broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.amqp.publisher import Publisher
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling

if TYPE_CHECKING:
    from gateway.amqp.kombu_publisher import KombuPublisher


def publisher_for(
    config: Config, metrics: Metrics, throttling: ReadThrottling | None = None
) -> Publisher | KombuPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    if config.amqp:
        return Publisher(config, metrics, throttling=throttling)
    # Imported here, because kombu takes longer to import than everything else.
    from gateway.amqp.kombu_publisher import KombuPublisher

    return KombuPublisher(config, metrics)

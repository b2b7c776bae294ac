"""The broker that the short forms break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stack import RabbitMQ


@pytest.fixture(scope="module")
def broker(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """The broker of all tests, which serves again after those that have broken it."""
    yield rabbitmq
    if not rabbitmq.alive():
        rabbitmq.restart()

"""What delays tasks where queues are quorum queues; Celery has it since 5.5."""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import delayed_delivery


class DelayedDelivery(delayed_delivery.DelayedDelivery):
    """Declare what delays tasks on the connected node only.

    The nodes of one list are one cluster. Celery declares on each of the list, and tries a node
    that is away for 17 s before the worker begins to consume.
    """

    def start(self, c: Any) -> None:
        self._connected = c.connection.as_uri(include_password=True)
        super().start(c)

    def _validate_broker_urls(self, broker_urls: str | list[str]) -> set[str]:
        return {self._connected}

"""Declare Celery's delayed delivery, which delays tasks on quorum queues since Celery 5.5."""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import delayed_delivery

from appserver.private_parts import PrivateParts

_PARTS = PrivateParts(
    "delayed delivery is declared on each node of the list",
    "celery.worker.consumer.delayed_delivery:DelayedDelivery._validate_broker_urls",
)


class DelayedDelivery(delayed_delivery.DelayedDelivery):
    """Declares the queues for delayed tasks only on the node to which the worker is connected.

    The nodes of one list are one cluster, so that is sufficient. Celery declares them on each node
    of the list, and tries to reach a node that is down for 17 s before the worker consumes.
    """

    def start(self, c: Any) -> None:
        if _PARTS.there:
            self._connected = c.connection.as_uri(include_password=True)
        super().start(c)

    def _validate_broker_urls(self, broker_urls: str | list[str]) -> set[str]:
        return {self._connected}

"""The queues that workers consume, and the queue for dead letters.

``celery`` is Celery's own default and never gets arguments, because any Celery client may have
declared it already. Its dead letters are published by the worker (`appserver.dead_letters`). Those
named in GATEWAY_QUEUES are quorum queues with a delivery limit and a dead-letter exchange. A
gateway route that declares one of them must name the same type and arguments (`QUEUE_TYPE`,
`QUEUE_ARGUMENTS`): RabbitMQ refuses any other with PRECONDITION_FAILED.
https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling
"""

from __future__ import annotations

from kombu import Exchange, Queue

DEFAULT_QUEUE = "celery"
DEAD_LETTER_EXCHANGE = "gateway.dead"
#: The exchange of dynamic queues, which gateways tell workers to consume.
DYNAMIC_EXCHANGE = "gateway.dynamic"

QUEUE_TYPE = "quorum"
#: The limit is RabbitMQ 4's own default. A forced reconnection counts as a delivery, too, so with a
#: small limit messages that crash no worker would become dead letters.
QUEUE_ARGUMENTS = {"x-dead-letter-exchange": DEAD_LETTER_EXCHANGE, "x-delivery-limit": 20}

#: Keeps the dead letters of all queues until an operator removes them.
DEAD_LETTER_QUEUE = Queue(
    DEAD_LETTER_EXCHANGE,
    Exchange(DEAD_LETTER_EXCHANGE, type="fanout", durable=True),
    durable=True,
    queue_arguments={"x-queue-type": QUEUE_TYPE},
)


def task_queues(names: str) -> list[Queue]:
    """Return the queue ``celery`` and one for each of `names`, which are separated by commas."""
    celery = Queue(DEFAULT_QUEUE, Exchange(DEFAULT_QUEUE, type="direct"), routing_key=DEFAULT_QUEUE)
    return [celery, *named_queues(names, DEFAULT_QUEUE)]


def named_queues(names: str, *others: str) -> list[Queue]:
    """Return a quorum queue for each of `names`, except those that are among the `others`."""
    named = dict.fromkeys(name.strip() for name in names.split(","))
    return [_named(name) for name in named if name and name not in others]


def _named(name: str) -> Queue:
    # On the default exchange, to which the gateway publishes, so no binding can be missing.
    return Queue(
        name,
        Exchange(""),
        routing_key=name,
        durable=True,
        queue_arguments={"x-queue-type": QUEUE_TYPE, **QUEUE_ARGUMENTS},
    )

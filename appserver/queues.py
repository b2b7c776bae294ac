"""The queues that workers consume from, and where dead letters go.

``celery`` is Celery's own default and never gets arguments: anybody's client may have declared
it already. Its dead letters are published by the worker (`appserver.dead_letters`). The queues
named in GATEWAY_QUEUES are quorum queues with a delivery limit and a dead-letter exchange. A
gateway route that declares one of them must name the same type and arguments (`QUEUE_TYPE`,
`QUEUE_ARGUMENTS`): RabbitMQ refuses any other with PRECONDITION_FAILED.
https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling
"""

from __future__ import annotations

from kombu import Exchange, Queue

DEFAULT_QUEUE = "celery"
DEAD_LETTER_EXCHANGE = "gateway.dead"

QUEUE_TYPE = "quorum"
#: RabbitMQ 4's own default limit. A forced reconnection counts as a delivery too, so a small
#: limit would bury innocent messages.
QUEUE_ARGUMENTS = {
    "x-dead-letter-exchange": DEAD_LETTER_EXCHANGE,
    "x-delivery-limit": 20,
}

#: Keeps every dead letter, whatever its queue, until somebody looks.
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
    """Return a quorum queue for each of `names`, but for those that are among the `others`."""
    named = dict.fromkeys(name.strip() for name in names.split(","))
    return [_named(name) for name in named if name and name not in others]


def _named(name: str) -> Queue:
    # On the default exchange, where the gateway publishes: there is no binding to go missing.
    return Queue(
        name,
        Exchange(""),
        routing_key=name,
        durable=True,
        queue_arguments={"x-queue-type": QUEUE_TYPE, **QUEUE_ARGUMENTS},
    )

"""Find settings of one task that are valid by themselves and cannot work together.

`dynamic.py` does the same for dynamic queues, `cross_checks.py` for the whole configuration.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from gateway.celery_message import Message
from gateway.config import dynamic
from gateway.config.pointers import check_name

if TYPE_CHECKING:
    from gateway.config.task import FurtherTask, TaskSettings

#: The headers of Celery's protocol, which `message_headers` must not replace.
_CELERYS = frozenset(Message("", "", "", b"", {}).headers()) | {"stamps", "stamped_headers"}


def check(task: TaskSettings) -> None:
    """Raise ValueError where the settings of `task` do not fit together."""
    dynamic.check(task)
    _check_fairness(task)
    _check_queues(task)
    _check_times(task)
    for name in task.message_headers:
        if name in _CELERYS:
            raise ValueError(f"message_headers: {name} is one of Celery's own")
    for name in task.kwargs or ():
        if not name.isidentifier():
            raise ValueError(f"kwargs: {name!r} is no name of an argument")


def check_further(task: FurtherTask) -> None:
    """Raise ValueError where a further task has what only the route's own task may have."""
    if task.dynamic:
        raise ValueError("queue: only the route's own task may have a dynamic queue")
    if task.fair_by is not None:
        raise ValueError("fair_by: only the route's own task may have fair queues")


def _check_queues(task: TaskSettings) -> None:
    own = not task.dynamic and (task.queue_type != "classic" or task.queue_arguments)
    if own and "celery" in task.queue_names:
        raise ValueError(
            "queue: `celery` cannot have a queue_type or queue_arguments, because Celery "
            "declares it without; give the queue another name"
        )
    if task.ordering_key is not None and task.queues is None and task.fair_by is None:
        raise ValueError("ordering_key: set it together with queues, a list of two or more")
    if task.queues is not None and task.ordering_key is None and task.fair_by is None:
        raise ValueError(
            "queues: ordering_key or fair_by says which of them a delivery goes to; set one, or "
            "name a single one in queue"
        )
    if task.queues and len(set(task.queues)) != len(task.queues):
        raise ValueError("queues: name each queue only once")
    if task.exchange is None and task.routing_key:
        raise ValueError("routing_key: set it together with exchange; `queue` names a queue")
    if task.exchange is not None and ("queue" in task.model_fields_set or task.queues):
        raise ValueError("exchange: its bindings name the queues; leave out queue and queues")


def _check_fairness(task: TaskSettings) -> None:
    if task.fair_by is None:
        if "fair_queues" in task.model_fields_set:
            raise ValueError("fair_queues: set it together with fair_by")
        return
    if task.ordering_key is not None:
        raise ValueError(
            "fair_by: it spreads a publisher's deliveries over two queues, and ordering_key "
            "keeps them in one; leave out one of the two"
        )
    if task.queues is not None and "fair_queues" in task.model_fields_set:
        raise ValueError("fair_queues: `queues` says how many there are; leave out one of them")
    if task.exchange is not None:
        raise ValueError("fair_by: an exchange chooses the queues itself; leave out one of them")
    if "{" in task.queue:
        raise ValueError("fair_by: the name of its queue cannot have pointers; leave out one")
    check_name(task.queue_names[-1])


def _check_times(task: TaskSettings) -> None:
    if task.countdown is not None and task.queue_type == "quorum":
        raise ValueError(
            "countdown: a worker would hold the message back beside its prefetch limit, which "
            "quorum queues do not allow; use a classic queue"
        )
    if (task.expires or inf) <= (task.countdown or 0):
        raise ValueError("expires: has to be above countdown, or the task would never run")
    if (task.soft_time_limit or 0) >= (task.time_limit or inf):
        raise ValueError("soft_time_limit: has to be below time_limit")

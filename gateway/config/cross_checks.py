"""Find settings that are valid by themselves and cannot work together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from gateway.config.dynamic import RENEWED
from gateway.config.route import PARAM, Route
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES
from gateway.sources import find

#: Hosts that mean all addresses of the machine.
_ANY = {"", "0.0.0.0", "::"}


def problems(config: Config) -> list[str]:
    """Return the problems of `config` as a whole; each says where it is and what would be valid."""
    found = [*_of_servers(config), *_of_ports(config), *_of_limits(config), *_of_routes(config)]
    return list(dict.fromkeys(found))


def _of_servers(config: Config) -> list[str]:
    problems = []
    if not config.results and config.strategy_info.stored:
        without = ", ".join(name for name, info in STRATEGIES.items() if not info.stored)
        problems.append(
            f"result_backend: the strategy {config.strategy} needs one; without it use {without}"
        )
    if config.journal and not config.state:
        problems.append("journal: the journal is kept in Redis; set result_backend or state_url")
    if not config.amqp:
        if config.strategy_info.amqp_only:
            others = ", ".join(name for name, info in STRATEGIES.items() if not info.amqp_only)
            problems.append(
                f"strategy: {config.strategy} needs an AMQP broker; "
                f"with a Redis broker only {others} work"
            )
        if len(config.brokers) > 1:
            problems.append("broker_url: a list is possible with AMQP only; give one URL")
    if len({urlsplit(broker).scheme for broker in config.brokers}) > 1:
        problems.append("broker_url: use amqps:// for all brokers of the list or for none")
    if config.strategy_info.patches and config.loop == "uvloop":
        problems.append(f"loop: {config.strategy} runs on asyncio's own loop; use auto or asyncio")
    return problems


def _of_ports(config: Config) -> list[str]:
    if config.uds or not config.port or config.port != config.admin_port:
        return []
    hosts = {config.host, config.admin_host}
    if len(hosts) > 1 and not hosts & _ANY:
        return []
    return [f"admin_port: {config.port} is the port for webhooks; choose another, or 0 for none"]


def _of_limits(config: Config) -> list[str]:
    least = 2 * (config.max_body + config.max_header)
    if config.max_in_flight_bytes >= least:
        return []
    return [
        "max_in_flight_bytes: has to be at least twice the sum of max_body and max_header, for the "
        f"largest request and its message: {least} or more"
    ]


def _of_routes(config: Config) -> list[str]:
    problems = [] if config.routes else ["routes: at least one is needed"]
    seen: dict[str, Route] = {}
    whole: set[str] = set()
    for i, route in enumerate(config.routes):
        place = f"routes[{i}]"
        path = PARAM.sub("{}", route.path)
        if path in whole:
            problems.append(f"{place}.path: an earlier route takes all deliveries on {path}")
        first = seen.setdefault(path, route)
        if path not in whole and (first.path, first.source) != (route.path, route.source):
            problems.append(
                f"{place}: routes on {path} differ in source or parameters; make them the same"
            )
        if route.events is None and not route.when:
            whole.add(path)
        problems += _of_dynamic_queues(config, route, place)
        problems += [f"{place}.{text}" for text in _of_route(config, route)]
    return [*problems, *_of_queues(config), *_of_fairness(config.routes)]


def _of_queues(config: Config) -> list[str]:
    problems = []
    declared: dict[str, tuple[bool, dict[str, Any]]] = {}
    for task in config.tasks:
        for queue in task.queue_names if not task.dynamic else ():
            kind = (task.declare, task.arguments())
            if declared.setdefault(queue, kind) != kind:
                problems.append(
                    f"routes: the queue {queue} has different values of declare, queue_type or "
                    "queue_arguments; make them the same"
                )
    return problems


def _of_dynamic_queues(config: Config, route: Route, place: str) -> list[str]:
    if not route.dynamic:
        return []
    if not config.amqp:
        return [f"{place}.queue: only an AMQP broker has queues that expire; use a fixed name"]
    problems = []
    for other in config.routes:
        if other.queue == route.queue and _own(other) != _own(route):
            problems.append(
                f"routes: the queue {route.queue} has different values of queue_pattern, "
                "queue_limit, queue_expires, static_queue or queue_arguments; make them the same"
            )
    # These strategies publish in a thread or a greenlet, which may begin only at the deadline.
    patience = config.confirm_timeout
    patience += route.deadline if config.strategy_info.subscribes == "key" else 0
    if route.queue_expires * RENEWED < patience:
        problems.append(
            f"{place}.queue_expires: a message could arrive after its queue has expired; set it to "
            f"{math.ceil(patience / RENEWED)} or more"
        )
    return problems


def _own(route: Route) -> tuple[Any, ...]:
    own = route.queue_pattern, route.queue_limit, route.queue_expires, route.static_queue
    return *own, route.queue_arguments


def _of_fairness(routes: Sequence[Route]) -> Iterator[str]:
    """Yield the problems of fair queues that several routes share, or of which each needs some."""
    fair = [(i, route) for i, route in enumerate(routes) if route.fair_by is not None]
    for i, route in fair:
        own = route.queues or route.queue
        sharing = [other for _, other in fair if (other.queues or other.queue) == own]
        if len({other.fair_queues for other in sharing}) > 1:
            yield (
                f"routes: the queue {route.queue} has different values of fair_queues; make them "
                "the same"
            )
        if route.fair_by == "source" and len({other.source for other in sharing}) < 2:
            yield (
                f"routes[{i}].fair_by: all deliveries on the queue {route.queue} have one source, "
                "which would be one publisher; use remote (the sender's address), or another "
                "pointer, or let routes of several sources share the queue"
            )


def _of_route(config: Config, route: Route) -> list[str]:
    problems = []
    if route.source is not None and route.source not in config.sources:
        names = ", ".join(sorted(config.sources)) or "none"
        return [f"source: no such source; [sources] has {names}"]
    scheme = find(config.sources[route.source].scheme) if route.source else None
    if scheme is not None and scheme.needs_public_url and not config.public_url:
        problems.append("source: this sender signs the URL; set public_url to the URL that it uses")
    if route.answer != "wait" or route.prefer:
        if not config.amqp:
            problems.append("answer: only an AMQP broker confirms messages; use wait with this one")
        if not config.results and not route.ignore_result:
            problems.append("answer: results that are fetched later need result_backend; set it")
        if _gives_location(route) and not (config.secret_key and config.public_url):
            problems.append("answer: a 202 has a Location, which needs secret_key and public_url")
    if route.countdown is not None and route.answer == "wait" and route.countdown >= route.deadline:
        problems.append("countdown: the deadline would pass before the task begins; lower it")
    if not config.amqp and (route.exchange or route.priority is not None):
        problems.append("exchange, priority: only an AMQP broker has them; leave them out")
    if not config.amqp and route.also:
        problems.append("also: only an AMQP broker confirms messages; leave it out with this one")
    if not config.amqp and route.revoke:
        problems.append("revoke: tasks are revoked over AMQP only; leave it out with this broker")
    if route.task_id == "identity" and not route.identified:
        problems.append("task_id: deliveries have no identity here; set idempotency")
    if route.revoke and route.identified:
        problems.append('revoke: the next try joins the task; set idempotency = "none"')
    if not config.amqp and route.tries > 1:
        problems.append("tries: only an AMQP broker confirms messages; use 1 with this one")
    if (route.identified or route.takes_chosen_keys) and not config.state:
        problems.append("idempotency: claims are kept in Redis; set state_url or result_backend")
    if route.identified and not config.results:
        problems.append("idempotency: later tries read the result from result_backend; set it")
    if route.identified and route.tries > 1 and not route.retry_after:
        problems.append("retry_after: is needed with tries; set the seconds between two tries")
    if route.tries > 1 and not route.identified:
        problems.append("tries: later tries are recognized by their identity; set idempotency")
    return problems


def _gives_location(route: Route) -> bool:
    """Can a request on `route` be answered with a 202 that names the URL of a result?"""
    if route.ignore_result:
        return False
    if route.prefer or route.fallback is None:
        return True
    return route.answer == "accept" and route.source is None

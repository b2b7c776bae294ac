"""Find settings that are valid by themselves and cannot work together.

What follows from one task or one route alone is in `task.py` and `route.py`. Here is what
needs the whole configuration, or the defaults that it gives to a route.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from itertools import chain
from urllib.parse import urlsplit

from gateway.config.dynamic import RENEWED
from gateway.config.late import Late
from gateway.config.route import PARAM, Route
from gateway.config.settings import REFUSED_BYTES, Config
from gateway.config.strategies import STRATEGIES, properties
from gateway.config.task import TaskSettings
from gateway.sources import of

#: Hosts that mean all addresses of the machine.
_ANY = {"", "0.0.0.0", "::"}


def problems(config: Config) -> list[str]:
    """Return the problems of `config` as a whole; each says where it is and what would be valid."""
    found = _of_servers(config), _of_ports(config), _of_limits(config), _of_routes(config)
    return list(dict.fromkeys(chain(*found)))


def _of_servers(config: Config) -> Iterator[str]:
    if not config.results and config.strategy_info.stored:
        without = ", ".join(name for name in STRATEGIES if not properties(name).stored)
        yield f"result_backend: the strategy {config.strategy} needs one; without it use {without}"
    if config.journal and not config.state:
        yield "journal: the journal is kept in Redis; set result_backend or state_url"
    if config.notify and not config.journal:
        yield "notify: failures are counted with a journal; set journal = 10000, say"
    if config.archive and not config.journal:
        yield "archive_url: it is filled from the journal; set journal = 10000, say"
    if config.journal_refused and not config.most_refused:
        yield (
            "journal_refused: refused requests may fill a tenth of the journal, which has no room "
            f"for one; set journal to 10 or more, and journal_bytes to {10 * REFUSED_BYTES} or more"
        )
    if not config.amqp:
        if config.strategy_info.amqp_only:
            others = ", ".join(name for name in STRATEGIES if not properties(name).amqp_only)
            only = f"with a Redis broker only {others} work"
            yield f"strategy: {config.strategy} needs an AMQP broker; {only}"
        if len(config.brokers) > 1:
            yield "broker_url: a list is possible with AMQP only; give one URL"
    if len({urlsplit(broker).scheme for broker in config.brokers}) > 1:
        yield "broker_url: use amqps:// for all brokers of the list or for none"
    if config.strategy_info.patches and config.loop == "uvloop":
        yield f"loop: {config.strategy} runs on asyncio's own loop; use auto or asyncio"


def _of_ports(config: Config) -> Iterator[str]:
    """Also refuse to show deliveries to everybody who reaches the admin port."""
    admin, hosts = config.admin_host, {config.host, config.admin_host}
    apart = config.uds or (len(hosts) > 1 and not hosts & _ANY)
    if config.port and config.port == config.admin_port and not apart:
        yield f"admin_port: {config.port} is the port for webhooks; choose another, or 0 for none"
    local = admin == "localhost" or _is_loopback(admin)
    if config.journal and config.admin_port and not (config.admin_token or local):
        yield (
            f"admin_token: everybody who reaches {admin or 'the machine'} could read and replay "
            "the journal's deliveries; set it to 16 characters or more, or use 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _of_limits(config: Config) -> Iterator[str]:
    least = 2 * (config.max_body + config.max_header)
    if config.max_in_flight_bytes < least:
        yield (
            "max_in_flight_bytes: has to be at least twice the sum of max_body and max_header, for "
            f"the largest request and its message: {least} or more"
        )


def _of_routes(config: Config) -> Iterator[str]:
    if not config.routes:
        yield "routes: at least one is needed"
    yield from _of_paths(config.routes)
    for i, route in enumerate(config.routes):
        yield from (f"routes[{i}].{text}" for text in _of_route(config, route))
    yield from _of_queues(config)
    yield from _of_dynamic_queues(config.routes)
    yield from _of_fairness(config.routes)


# Several routes ---------------------------------------------------------------------------


def _of_paths(routes: Sequence[Route]) -> Iterator[str]:
    """Yield the problems of routes that have the same path."""
    seen: dict[str, Route] = {}
    whole: set[str] = set()
    for i, route in enumerate(routes):
        path = PARAM.sub("{}", route.path)
        if path in whole:
            yield (
                f"routes[{i}].path: an earlier route takes all deliveries on {route.path}; give "
                "that one events or when, or leave out one of the two"
            )
        first = seen.setdefault(path, route)
        if path not in whole and (first.path, first.source) != (route.path, route.source):
            yield (
                f"routes[{i}]: routes on {path} differ in source or parameters; make them the same"
            )
        if route.events is None and not route.when:
            whole.add(path)


def _of_queues(config: Config) -> Iterator[str]:
    """Yield the queues that several tasks declare differently."""
    kinds = [
        (queue, path, place, (task.declare, task.arguments()))
        for path, place, task in _tasks(config.routes)
        for queue in (task.queue_names if not task.dynamic else ())
    ]
    yield from _different(kinds, "declare, queue_type or queue_arguments")


def _tasks(routes: Sequence[Route]) -> Iterator[tuple[str, str, TaskSettings]]:
    """Yield each task with its route's path and the place of its settings."""
    for i, route in enumerate(routes):
        yield route.path, f"routes[{i}]", route
        for j, task in enumerate(route.also):
            yield route.path, f"routes[{i}].also[{j}]", task


def _different(kinds: Iterable[tuple[str, str, str, object]], names: str) -> Iterator[str]:
    """Yield the queues that have several kinds; each is there with a path, a place and a kind."""
    declared: dict[str, tuple[str, str, object]] = {}
    reported: set[str] = set()
    for queue, path, place, kind in kinds:
        first_path, first, other = declared.setdefault(queue, (path, place, kind))
        if other != kind and queue not in reported:
            reported.add(queue)
            yield (
                f"{place}: the queue {queue} has other values of {names} than in {first} "
                f"(path {first_path}); make them the same"
            )


def _of_dynamic_queues(routes: Sequence[Route]) -> Iterator[str]:
    """Yield the dynamic queues that several routes declare differently."""
    kinds = []
    for i, route in enumerate(routes):
        own = route.queue_pattern, route.queue_limit, route.queue_expires, route.static_queue
        if route.dynamic:
            kind = *own, route.queue_arguments
            kinds.append((route.queue, route.path, f"routes[{i}]", kind))
    names = "queue_pattern, queue_limit, queue_expires, static_queue or queue_arguments"
    yield from _different(kinds, names)


def _of_fairness(routes: Sequence[Route]) -> Iterator[str]:
    """Yield the problems of fair queues that several routes share, or of which each needs some."""
    fair = [(i, route) for i, route in enumerate(routes) if route.fair_by is not None]
    kinds = [
        (",".join(route.queues or [route.queue]), route.path, f"routes[{i}]", route.fair_queues)
        for i, route in fair
    ]
    yield from _different(kinds, "fair_queues")
    for i, route in fair:
        own = route.queues or route.queue
        sharing = [other for _, other in fair if (other.queues or other.queue) == own]
        if route.fair_by == "source" and len({other.source for other in sharing}) < 2:
            yield (
                f"routes[{i}].fair_by: all deliveries on the queue {route.queue} have one source, "
                "which would be one publisher; use remote (the sender's address), or another "
                "pointer, or let routes of several sources share the queue"
            )


# One route and the settings around it -----------------------------------------------------


def _of_route(config: Config, route: Route) -> Iterator[str]:
    if route.source is not None and route.source not in config.sources:
        names = ", ".join(sorted(config.sources)) or "none"
        yield f"source: no such source; [sources] has {names}"
        return
    options = config.sources[route.source] if route.source else None
    scheme = of(options) if options else None
    if scheme is not None and options and scheme.needs_url(options) and not config.public_url:
        yield "source: this sender signs the URL; set public_url to the URL that it uses"
    if not config.amqp:
        yield from _without_amqp(route)
    yield from _of_answers(config, route)
    yield from _of_identity(config, route)
    if route.dynamic:
        yield from _of_expiry(config, route)


def _without_amqp(route: Route) -> Iterator[str]:
    """Yield what needs an AMQP broker."""
    if route.dynamic:
        yield "queue: only an AMQP broker has queues that expire; use a fixed name"
    if route.exchange or route.priority is not None:
        yield "exchange, priority: only an AMQP broker has them; leave them out"
    if route.answer != "wait" or route.prefer:
        yield "answer: only an AMQP broker confirms messages; use wait with this one"
    if route.also:
        yield "also: only an AMQP broker confirms messages; leave it out with this one"
    if route.tries > 1:
        yield "tries: only an AMQP broker confirms messages; use 1 with this one"
    if route.revoke:
        yield "revoke: tasks are revoked over AMQP only; leave it out with this broker"


def _of_answers(config: Config, route: Route) -> Iterator[str]:
    """Yield what the way of answering needs."""
    if route.answer != "wait" or route.prefer:
        if not config.results and not route.ignore_result:
            yield "answer: results that are fetched later need result_backend; set it"
        if _gives_location(route) and not (config.secret_key and config.public_url):
            yield "answer: a 202 has a Location, which needs secret_key and public_url"
    if route.late is not None:
        yield from _of_late(config, route, route.late)
    if route.countdown is not None and route.answer == "wait" and route.countdown >= route.deadline:
        yield "countdown: the deadline would pass before the task begins; lower it"


def _of_late(config: Config, route: Route, late: Late) -> Iterator[str]:
    """Yield what late answers need."""
    if not config.state:
        yield "late: what is to be sent is kept in Redis; set state_url or result_backend"
    source = config.sources.get(route.source or "")
    missing = [
        name
        for name in ("app_id", "app_secret")
        if name in late.needs and not (source and source.credential(name))
    ]
    if missing:
        named = f"sources.{route.source}" if source else "a source for this route"
        yield f"late: sending needs {' and '.join(missing)}; set it in {named}"


def _of_identity(config: Config, route: Route) -> Iterator[str]:
    """Yield what needs an identity of the deliveries, and what that needs."""
    if route.task_id == "identity" and not route.identified:
        yield "task_id: deliveries have no identity here; set idempotency"
    if route.revoke and route.identified:
        yield 'revoke: the next try joins the task; set idempotency = "none"'
    if (route.identified or route.takes_chosen_keys) and not config.state:
        yield "idempotency: claims are kept in Redis; set state_url or result_backend"
    if route.identified and not config.results:
        yield "idempotency: later tries read the result from result_backend; set it"
    if route.tries > 1 and route.identified and not route.retry_after:
        yield "retry_after: is needed with tries; set the seconds between two tries"
    if route.tries > 1 and not route.identified:
        yield "tries: later tries are recognized by their identity; set idempotency"


def _of_expiry(config: Config, route: Route) -> Iterator[str]:
    """Yield a `queue_expires` that is too short for the way to the broker."""
    # These strategies publish in a thread or a greenlet, which may begin only at the deadline.
    patience = config.confirm_timeout
    patience += route.deadline if config.strategy_info.subscribes == "key" else 0
    if route.queue_expires * RENEWED < patience:
        yield (
            "queue_expires: a message could arrive after its queue has expired; set it to "
            f"{math.ceil(patience / RENEWED)} or more"
        )


def _gives_location(route: Route) -> bool:
    """Can a request on `route` be answered with a 202 that names the URL of a result?"""
    if route.ignore_result:
        return False
    if route.prefer or route.fallback is None:
        return True
    return route.answer == "accept" and route.source is None

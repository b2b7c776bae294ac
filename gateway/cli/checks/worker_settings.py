"""Compare the workers' settings for stored results with those that the gateway expects.

Celery shows that a setting exists, and hides values that may be secrets: a URL's password, the
value of `global_keyprefix`. It does not show CELERY_RESULT_BACKEND of the worker's environment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kombu.utils.url import url_to_parts
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.amqp.workers import Answers, Worker
from gateway.cli.checks.finding import Finding, fail, listed, warn
from gateway.config.settings import Config
from gateway.config.urls import database
from gateway.stores import result_store

STORED, EARLY = "stored results", "acknowledgements"
SAME = (
    "set the same result_backend in the workers' app and for the gateway (GATEWAY_RESULT_BACKEND "
    "is the app server's and the gateway's), and restart them"
)
_ASK = "`celery -A APP inspect conf` says why; set result_backend to a URL that Celery can read"
_URL = re.compile(r"(?<![a-z])(?:redis|rediss|sentinel)://.*", re.S).search
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")
#: The text form of a `timedelta`.
_DURATION = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.\d+)?").fullmatch
_LONGEST = 86_400  # the longest result_expires of the gateway, in seconds
_PATIENCE = 0.8  # seconds for a server's answer

Settings = Mapping[str, Any]
#: Host and port.
Server = tuple[str, int]


async def same_servers(config: Config, servers: Iterable[Server]) -> dict[Server, bool | None]:
    """Return for each of the `servers` whether it is the gateway's result store.

    None: the server cannot be reached from here, or needs a password. The gateway's password is not
    sent, because anybody who may publish to the broker can provide addresses.
    """
    names = sorted(set(servers))
    if not names:
        return {}
    clients = [Redis(host=host, port=port, protocol=2) for host, port in names]
    runs = await asyncio.gather(_run(result_store.connect(config)), *map(_run, clients))
    own, *others = runs
    pairs = zip(names, others, strict=True)
    return {name: own == other if own and other else None for name, other in pairs}


async def _run(client: Redis) -> str:
    """Return the run id of a Redis; empty where it does not tell."""
    try:
        async with asyncio.timeout(_PATIENCE), client:
            about: dict[str, Any] = await client.info("server")
        return str(about.get("run_id", ""))
    except (RedisError, OSError):
        return ""


def serving(config: Config, answers: Answers) -> dict[str, Worker]:
    """Return the workers that may run the routes' tasks, by their names."""
    tasks = [task for route in config.routes for task in (route, *route.also)]
    queues = {queue for task in tasks for queue in task.queue_names}
    any_queue = any(task.exchange is not None for task in tasks)
    return {
        name: worker
        for name, worker in sorted(answers.workers.items())
        if any_queue or worker.queues is None or not queues.isdisjoint(worker.queues)
    }


def of(config: Config, answers: Answers) -> dict[str, Settings]:
    """Return the settings of those of these workers that have sent them."""
    found = serving(config, answers)
    return {name: worker.settings for name, worker in found.items() if worker.settings}


def untold(config: Config, answers: Answers) -> list[Finding]:
    """Return a finding about workers that answer the question for their settings with an error.

    Celery before 5.7 raises one where it cannot hide the password of a URL.
    """
    names = [name for name, worker in serving(config, answers).items() if worker.settings == {}]
    if not names:
        return []
    problem = f"{listed(names)}: the settings are answered with an error, and not checked"
    return [warn(STORED, problem, _ASK)]


def early(config: Config, answers: Answers) -> list[Finding]:
    """Return a warning about workers that lose accepted deliveries if they are killed."""
    accepting = [route for route in config.routes if route.answer != "wait" or route.prefer]
    tasks = [*accepting, *(further for route in config.routes for further in route.also)]
    queues = {queue for task in tasks for queue in task.queue_names}
    groups: dict[str, list[str]] = {}
    for name, conf in sorted(of(config, answers).items()):
        worker = answers.workers[name]
        setting = _missing(conf, worker) if queues.intersection(worker.queues or ()) else ""
        groups.setdefault(setting, []).append(name)
    found = []
    for setting in sorted(groups.keys() - {""}):
        problem = (
            f"{listed(groups[setting])}: a message is acknowledged though its task has not ended, "
            f"as {setting} is not set: what was answered 2xx is lost if the worker, or a process "
            "of its pool, is killed"
        )
        remedy = (
            "appserver.setup(app), or task_acks_late = task_reject_on_worker_lost = True in "
            "their app; ignore it if each task has both by itself (acks_late, ...)"
        )
        found.append(warn(EARLY, problem, remedy))
    return found


def _missing(settings: Settings, worker: Worker) -> str:
    """Return the setting without which a worker, or its pool's process, takes a message along."""
    if not settings.get("task_acks_late"):
        return "task_acks_late"
    alone = worker.solo or worker.pool in ("", "thread", "gevent", "eventlet")  # no processes
    kept = alone or settings.get("task_reject_on_worker_lost")
    return "" if kept else "task_reject_on_worker_lost"


def forms(config: Config, settings: Mapping[str, Settings]) -> Iterator[Finding]:
    """Yield findings about workers that keep results for another time, or in another form."""
    expected = config.result_expires
    for seconds, names in _grouped(settings, expires).items():
        if seconds is not None and abs(seconds - expected) >= 1:
            kept = f"for {seconds:g} s" if seconds else "for ever"
            problem = f"{listed(names)}: keep results {kept}; the gateway's are kept {expected:g} s"
            judged = fail if 0 < seconds < expected else warn  # kept longer, they only need memory
            yield judged(STORED, problem, _same_expiry(expected, seconds))
    for form, names in _grouped(settings, _form).items():
        if form:
            yield strange(f"{listed(names)}: {form}")


def strange(what: str) -> Finding:
    """Return a finding about results that the gateway cannot read."""
    remedy = "set result_serializer = 'json' and no result_compression in their app"
    return fail(STORED, f"{what}; the gateway reads plain JSON", remedy)


def elsewhere(
    config: Config, settings: Mapping[str, Settings], same: Mapping[Server, bool | None]
) -> Iterator[Finding]:
    """Yield findings about workers whose results are not where the gateway reads.

    `same` tells of the servers with another address than the gateway's whether they are the same.
    """
    for url, names in _grouped(settings, _backend).items():
        if not _URL(url):
            problem = f"{listed(names)}: stores nothing in Redis, as result_backend is {url}"
            yield fail(STORED, problem, "set result_backend redis://... in their app")
    yield from other_places(config, settings, same)
    for has_prefix, names in _grouped(settings, _has_prefix).items():
        if has_prefix != bool(config.result_key_prefix):
            has = "has a" if has_prefix else "has no"
            problem = f"{listed(names)}: {has} global_keyprefix, unlike the gateway"
            yield fail(STORED, problem, same_prefix(config, "THEIRS" if has_prefix else ""))


def other_places(
    config: Config, settings: Mapping[str, Settings], same: Mapping[Server, bool | None]
) -> Iterator[Finding]:
    """Yield findings about workers that name another server, or another database."""
    for url, names in _grouped(settings, _backend).items():
        if not _URL(url):
            continue
        server, database = place(url)
        own_server, own_database = place(config.results)
        if database != own_database:
            problem = f"{listed(names)}: in database {database}; the gateway reads {own_database}"
            yield fail(STORED, problem, SAME)
        elif server != own_server and same.get(server) is False:
            yield fail(STORED, f"{listed(names)}: in another Redis, {url}", SAME)
        elif server != own_server and not same.get(server):
            problem = f"{listed(names)}: in {url}; whether that is the gateway's is not known"
            yield warn(STORED, problem, "check that both names are the same server")


def other_servers(config: Config, settings: Mapping[str, Settings]) -> dict[str, Server]:
    """Return the host and port of the Redis for each worker that names another than the gateway."""
    urls = {name: _backend(conf) for name, conf in settings.items()}
    servers = {name: place(url)[0] for name, url in urls.items() if _URL(url)}
    own = place(config.results)[0] if config.results else None
    return {name: server for name, server in servers.items() if server != own}


def hint(config: Config, settings: Mapping[str, Settings]) -> str:
    """Return a text that names the workers with another result backend than the gateway."""
    own = place(config.results)
    return "".join(
        f"; {listed(names)}: {url}"
        for url, names in _grouped(settings, _backend).items()
        if not _URL(url) or place(url) != own
    )


def same_prefix(config: Config, theirs: str) -> str:
    """Return the remedy for different prefixes of the results' keys."""
    own = config.result_key_prefix
    workers = "take global_keyprefix out of result_backend_transport_options in the workers' app"
    if own:
        options = f"{{'global_keyprefix': {own!r}}}"
        workers = f"set result_backend_transport_options = {options} in their app"
    gateway = f"or set result_key_prefix = {theirs!r} for the gateway"
    return f"{workers} (the app server: GATEWAY_RESULT_KEY_PREFIX={own}), {gateway}"


def expires(settings: Settings) -> float | None:
    """Return for how many seconds results are kept; 0: for ever; None: that is not known."""
    value = settings.get("result_expires", "unknown")
    if value is None:
        return 0.0
    if isinstance(value, (int, float)):
        return float(value)
    if match := _DURATION(str(value)):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
    return None


def _same_expiry(own: float, theirs: float) -> str:
    app_server = f"the app server: GATEWAY_RESULT_EXPIRES={own:g}"
    workers = f"set result_expires = {own:g} in the workers' app ({app_server}) and restart them"
    gateway = f", or result_expires = {theirs:g} for the gateway"
    return workers + (gateway if 0 < theirs <= _LONGEST else "")


def _form(settings: Settings) -> str:
    serializer, compression = settings.get("result_serializer"), settings.get("result_compression")
    if serializer not in (None, "json", "application/json"):
        return f"result_serializer is {serializer}"
    return f"result_compression is {compression}" if compression else ""


def _backend(settings: Settings) -> str:
    # Older versions of Celery do not hide the password, and none does so in unusual URLs.
    return _PASSWORD.sub("**", str(settings.get("result_backend") or "not set"))


def _has_prefix(settings: Settings) -> bool:
    options = settings.get("result_backend_transport_options")
    return isinstance(options, dict) and bool(options.get("global_keyprefix"))


def place(url: str) -> tuple[Server, str]:
    """Return the server and the database of a Redis' URL; for a list those of the first URL."""
    found = _URL(url)
    first = (found[0] if found else url).split(";")[0]
    parts = url_to_parts(first)
    default = 26379 if parts.scheme == "sentinel" else 6379
    return (parts.hostname or "localhost", parts.port or default), database(first)


def _grouped(settings: Mapping[str, Settings], of: Any) -> dict[Any, list[str]]:
    groups: dict[Any, list[str]] = {}
    for name, conf in sorted(settings.items()):
        groups.setdefault(of(conf), []).append(name)
    return groups

"""All settings with their types, limits and defaults.

`loading.py` reads the values, and `cross_checks.py` checks their combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from kombu.utils.url import parse_url
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from gateway.config import urls
from gateway.config.notify import Notify
from gateway.config.problems import explain
from gateway.config.route import RESULTS, Route
from gateway.config.strategies import STRATEGIES, StrategyInfo, properties
from gateway.config.task import TaskSettings
from gateway.config.urls import TLS
from gateway.errors import PluginError
from gateway.model import File, Model, Seconds, Text, matching
from gateway.sources import of, options_class
from gateway.sources.base import Options, Source, as_list

#: The most bytes of a refused request in the journal.
REFUSED_BYTES = 64 * 1024


def _strategy(name: str) -> str:
    if name not in STRATEGIES:
        *others, last = (repr(each) for each in STRATEGIES)
        raise ValueError(f"has to be {', '.join(others)} or {last}")
    try:
        properties(name)
    except PluginError as exc:
        raise ValueError(str(exc)) from exc
    return name


def _urls(value: Any) -> Any:
    """Return a list from one URL, from several separated by `;` (as in Celery), or from a list."""
    return value.split(";") if isinstance(value, str) else as_list(value)


def _share(value: Any) -> float:
    """Return a share from 0 to 1; true is all, and false none."""
    if isinstance(value, Text):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        return float(value)
    raise ValueError("has to be true, false, or a share of all requests such as 0.01")


def _no_text(url: Any) -> Any:
    """Return None for an empty text, as a variable has it."""
    return None if url == "" else url


def _url(check: Callable[[str], None]) -> AfterValidator:
    def checked(url: SecretStr) -> SecretStr:
        check(url.get_secret_value())
        return url

    return AfterValidator(checked)


def _network(text: str) -> str:
    ip_network(text := text.strip())
    return text


_Store = Annotated[Annotated[SecretStr, _url(urls.check_store)] | None, BeforeValidator(_no_text)]
_Archive = Annotated[
    Annotated[SecretStr, _url(urls.check_archive)] | None, BeforeValidator(_no_text)
]
# The beginning of a Location header: printable ASCII, no query, no slash at the end.
_PublicURL = Annotated[
    str,
    matching(
        r"https?://(?:(?![?#])[!-~])+(?<!/)",
        "begins with https:// or http://, ends without a slash, and has no query; letters that are "
        "not ASCII are written as senders write them: xn--... in the host, %.. in the path",
    ),
]
StrategyName = Annotated[str, AfterValidator(_strategy)]

_header = matching(r"[A-Za-z0-9-]+", "has to be the name of a header")


class Config(Model):
    """The settings of a gateway; times in seconds, sizes in bytes, limits per process."""

    strategy: StrategyName = "redis"
    """how a result is awaited: one of [the strategies](performance.md#the-strategies)"""
    broker_url: Annotated[list[SecretStr], BeforeValidator(_urls)] = [
        SecretStr("amqp://guest:guest@127.0.0.1:5672//")
    ]
    """amqp:// or amqps://; the URLs of a list (in a variable: separated by `;`) are tried in turn.
    `?heartbeat=10` is for how many seconds the broker may be silent before it is given up, twice
    over; 0: for ever, unless a confirm is missing. redis:// only for trying out"""
    result_backend: _Store = SecretStr("redis://127.0.0.1:6379/0")
    """redis://, rediss:// or `sentinel://host:26379/0;sentinel://...?master_name=NAME`; may be
    empty with `pika`"""
    sentinel_username: str | None = None
    """the Sentinels' own user, if they have one
    ([Sentinel](configuration.md#several-brokers-sentinel)). The app server reads
    `GATEWAY_SENTINEL_USERNAME` and `GATEWAY_SENTINEL_PASSWORD`"""
    sentinel_password: SecretStr | None = None
    """the Sentinels' own password, if they have one; that of Redis is in the URL"""
    result_key_prefix: str = ""
    """Celery's `global_keyprefix`; the same for gateway and workers"""
    result_expires: Seconds = 300.0
    """seconds that workers keep a result (Celery's `result_expires`). It is also the life of a
    result's URL, and of a claim whose task has not ended. It has to be above your longest task. The
    app server reads only `GATEWAY_RESULT_EXPIRES`, so set it there"""
    state_url: _Store = None
    """(default: `result_backend`) the Redis that holds claims and the journal: redis://, rediss://
    or sentinel://, or any node of a Redis Cluster, which says itself that it is one
    ([Redis Cluster](configuration.md#redis-cluster))"""
    state_replicas: int = Field(0, ge=0, le=16)
    """how many replicas of that Redis must have a claim before the delivery is published (Redis'
    WAIT; [reliability.md](reliability.md#what-a-lost-redis-server-takes-with-it)); 0: none"""
    state_prefix: str | None = Field(None, min_length=1, max_length=200)
    """(default: the broker's virtual host and `result_key_prefix`) the beginning of all key names
    that the gateway uses there. If two deployments would have the same prefix, set a different one
    for each ([delivery.md](delivery.md#two-deployments-one-redis))"""
    without_state: Literal["refuse", "relay"] = "refuse"
    """what happens while that Redis is down. `refuse`: a 503; `relay`: deliveries are taken all the
    same, and each try runs its tasks. The same holds if Redis fails while a delivery is taken"""
    idempotency_window: float = Field(86_400.0, gt=0, le=30 * 86_400)
    """seconds for which later tries get a delivery's answer"""
    max_kept_answer: int = Field(2_048, ge=0, le=1024 * 1024)
    """the largest answer, in bytes, that is kept for later tries; a larger one is given again only
    while its result is stored"""
    journal: int = Field(0, ge=0, le=10_000_000)
    """how many of the last deliveries to keep for `gateway deliveries`; 0: none
    ([delivery.md](delivery.md#what-was-received))"""
    journal_bytes: int = Field(256 * 1024 * 1024, ge=1024)
    """how many bytes of deliveries to keep at most"""
    journal_age: float = Field(7 * 86_400.0, ge=1, le=366 * 86_400)
    """for how long to keep a delivery"""
    archive_url: _Archive = None
    """the database to which `gateway archive` copies the journal:
    `postgresql://user:password@host/name` or `sqlite:///file.db` ([archive.md](archive.md)); it
    needs the extra `archive`"""
    archive_days: float = Field(90.0, ge=0.01, le=36_600)
    """for how many days the archive keeps a delivery"""
    archive_bytes: int = Field(0, ge=0)
    """how many bytes the archive takes at most, with its indexes; the oldest days go first. 0: no
    limit"""
    keep_bodies: Literal["all", "failed", "none"] = "all"
    """whose calls, which have body, headers and query, the journal and the archive keep. `failed`:
    those of deliveries that have not succeeded (yet); `none`: only what is known about a delivery
    ([delivery.md](delivery.md#what-is-not-kept))"""
    journal_refused: bool = False
    """keep requests that were refused before they had a task as well
    ([delivery.md](delivery.md#what-was-refused-or-ignored)): in addition to `journal`, at most a
    tenth of it, and of `journal_bytes`"""
    history: File | None = None
    """a file of this gateway alone, in which rates, statuses and latencies of the
    last 14 days are kept over a restart ([metrics.md](metrics.md#the-history))"""
    log_requests: Annotated[float, BeforeValidator(_share)] = 0.0
    """(default: false) log a line for each request; a share such as `0.01`: for so many of them,
    and for all errors. It has method, path, status, milliseconds, and as far as they are known the
    delivery's and the task's id, the trace's id, route, source, event, state, strategy, the
    sender's address, the milliseconds until the message went to the broker (`published_ms`) and
    from then on (`waited_ms`), and why it is an error or why no route takes it. With `log_format =
    "json"` each of them is a field. `gateway dev` sets it to true. It costs CPU time, and nginx has
    its own log"""
    trace_sample: float | None = Field(None, ge=0, le=1)
    """(default: off) the part of all requests whose spans are exported by OpenTelemetry, 0 to 1
    ([tracing.md](tracing.md)); it needs the extra `otel`"""
    trace_follow: bool = False
    """if a request has a `traceparent`, the flag in it decides whether the request's spans are
    exported, and not `trace_sample`. Set it to true only if all senders are yours: others could
    have every request exported"""
    trace_endpoint: str | None = None
    """(default: OpenTelemetry's variables, or `http://localhost:4318`) the collector that gets
    them, by OTLP over HTTP; it is shown, so a token goes into `OTEL_EXPORTER_OTLP_HEADERS`"""
    trace_service: str | None = Field(None, min_length=1)
    """(default: OpenTelemetry's variable, or `celery-gateway`) the service's name in traces"""
    public_url: _PublicURL | None = None
    """the part of the URL before the path, as senders see it: `https://hooks.example.com`, in ASCII
    (`xn--...`). It is needed for result URLs and for schemes that sign the URL"""
    secret_key: SecretStr | None = Field(None, min_length=16)
    """signs result URLs; 16 characters or more, the same on every machine"""
    host: str = "127.0.0.1"
    """the address to listen on; without effect, like `port` and `uds`, if a service manager passes
    a socket ([deploy.md](deploy.md))"""
    port: int = Field(8000, ge=0, le=65_535)
    """the port to listen on"""
    uds: File | None = None
    """a UNIX socket to listen on instead; if another process listens on it, the gateway does not
    start"""
    processes: int = Field(1, ge=1, le=256)
    """serving processes"""
    admin_host: str = "127.0.0.1"
    """the address of the dashboard, of health and of metrics"""
    admin_port: int = Field(9464, ge=0, le=65_535)
    """their port; 0: off"""
    admin_token: SecretStr | None = Field(None, min_length=16)
    """what clients of the admin port's API send as `Authorization: Bearer TOKEN`; 16 characters or
    more. Health and metrics need none. It is needed with a `journal` where `admin_host` is not a
    loopback address"""
    admin_user_header: Annotated[str, _header] | None = None
    """the header in which a proxy names whom it has authenticated, as
    `X-Forwarded-User` ([page.md](page.md#behind-a-proxy-that-authenticates)); it counts only from
    `trusted_proxies`"""
    admin_roles: dict[Literal["view", "bodies", "act"], list[str]] = {}
    """what those users may do: `view` lists deliveries, `bodies` also shows and searches their
    bodies, `act` also sends them again; `*` stands for any text"""
    timeout: Seconds = 10.0
    """seconds: the deadline of a route without its own; the gateway notices a deadline within 50
    ms"""
    confirm_timeout: Seconds = 3.0
    """seconds until an unconfirmed message is a 503; never beyond the deadline"""
    max_connections: int = Field(12_000, ge=1)
    """connections to a process, at most 96 fewer than its limit on open files; further connections
    wait until one has closed ([reliability.md](reliability.md#memory))"""
    max_in_flight: int = Field(10_000, ge=1)
    """requests in flight in a process; more are a 503"""
    max_in_flight_bytes: int = Field(128 * 1024 * 1024, ge=1)
    """how many bytes a process may hold of requests that it is receiving or has in flight, with
    their messages. A request that does not fit is a 503. Messages that the broker does not read
    have a limit of their own, of the same size"""
    threads: int = Field(64, ge=1, le=1_000)
    """`threadpool`: the size of its pool, and so the number of requests that it can wait for"""
    max_body: int = Field(1024 * 1024, ge=0, le=128 * 1024 * 1024)
    """bytes; more is a 413. Keep it below the broker's own limit ([errors.md](errors.md))"""
    max_header: int = Field(16 * 1024, ge=256, le=64 * 1024)
    """bytes; more is a 431, a longer URI a 414"""
    body_timeout: Seconds = 10.0
    """seconds for a whole body; else a 408. A body that comes after its route's deadline is a 408,
    too"""
    idle_timeout: Seconds = 75.0
    """seconds between requests on a connection; above nginx's upstream `keepalive_timeout`"""
    grace: Seconds = 30.0
    """seconds that draining waits for requests in flight"""
    backlog: int = Field(4_096, ge=1, le=65_535)
    """connections that wait to be accepted"""
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = ["127.0.0.1", "::1"]
    """addresses and networks of proxies whose X-Forwarded-For is used; in a variable separated by
    `,`"""
    log_format: Literal["text", "json"] = "text"
    """or `json`"""
    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    """`auto`: uvloop if it is installed; `asyncio`, `uvloop`"""
    tls: TLS = TLS()
    notify: Notify | None = None
    sources: dict[str, SerializeAsAny[Options]] = {}
    routes: list[Route] = Field([Route(path="/")], validate_default=True)

    @field_validator("broker_url")
    @classmethod
    def _brokers(cls, brokers: list[SecretStr]) -> list[SecretStr]:
        if not brokers:
            raise ValueError("names no broker; give a URL, or leave it out for RabbitMQ here")
        for url in brokers:
            urls.check_broker(url.get_secret_value())
        return brokers

    @field_validator("trace_endpoint")
    @classmethod
    def _collector(cls, url: str | None) -> str | None:
        """Add the path of OTLP where the URL has none."""
        if url is None:
            return None
        urls.check(url, ("http", "https"))
        if not set("@?#").isdisjoint(url):
            where = "a token goes into OTEL_EXPORTER_OTLP_HEADERS"
            raise ValueError(f"may not have a user, a query or a fragment, as it is shown; {where}")
        return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/traces"

    @field_validator("sources", mode="before")
    @classmethod
    def _schemes(cls, values: Any) -> Any:
        """Validate each source with the options of its scheme."""
        if not isinstance(values, dict):
            raise ValueError("each source is a table with a name: write [sources.NAME]")
        if isinstance(values.get("scheme"), str):
            raise ValueError("a source has a name of its own: write [sources.NAME]")
        found, problems = {}, []
        for name, value in values.items():
            if isinstance(value, Options):
                found[name] = value
                continue
            try:
                options = options_class(value)
                found[name] = options.model_validate(value)
            except ValidationError as exc:
                problems += explain(exc, options, f"{name}.")
            except ValueError as exc:
                problems.append(f"{name}.{exc}")
        if problems:
            raise ValueError("\n".join(problems))
        return found

    @field_validator("routes")
    @classmethod
    def _complete(cls, routes: list[Route], info: ValidationInfo) -> list[Route]:
        """Fill in the routes' defaults, from their sources and from the settings above."""
        schemes = {name: of(its) for name, its in info.data.get("sources", {}).items()}
        timeout = info.data.get("timeout", 0.0)
        amqp = all(_is_amqp(url) for url in info.data.get("broker_url", ()))
        return [route.completed(schemes.get(route.source), timeout, amqp) for route in routes]

    @property
    def brokers(self) -> list[str]:
        """The broker URLs, secrets included."""
        return [url.get_secret_value() for url in self.broker_url]

    @property
    def results(self) -> str:
        """The result store's URL, secrets included; empty where there is none."""
        return self.result_backend.get_secret_value() if self.result_backend else ""

    @property
    def state(self) -> str:
        """The URL of the Redis with the claims and the journal; empty where there is none."""
        return self.state_url.get_secret_value() if self.state_url else self.results

    @property
    def archive(self) -> str:
        """The archive's URL, secrets included; empty where there is none."""
        return self.archive_url.get_secret_value() if self.archive_url else ""

    @property
    def most_without_message(self) -> int:
        """How many requests without a message the journal keeps; 0: none.

        They are in addition to `journal`, and at most a tenth of it and of `journal_bytes`.
        """
        return min(self.journal // 10, self.journal_bytes // 10 // REFUSED_BYTES)

    @property
    def most_refused(self) -> int:
        """How many of them may be refused requests, and not deliveries that no route takes."""
        return self.most_without_message if self.journal_refused else 0

    @property
    def prefix(self) -> str:
        """The prefix of all keys and channels that the gateway makes in Redis.

        Deployments with different virtual hosts or result prefixes share no keys.
        """
        if self.state_prefix is not None:
            return f"{self.state_prefix}:"
        host = quote(parse_url(self.brokers[0])["virtual_host"] or "/", safe="/")
        return f"gateway:{host}:{self.result_key_prefix}:"

    @property
    def local_url(self) -> str:
        """The URL of `host` and `port`, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def strategy_info(self) -> StrategyInfo:
        """The properties of the strategy."""
        return properties(self.strategy)

    @property
    def amqp(self) -> bool:
        """Is the broker an AMQP one (and not the Redis that `gateway dev` embeds)?"""
        return _is_amqp(self.broker_url[0])

    @property
    def claims_required(self) -> bool:
        """Is a delivery refused where Redis does not tell whether it has been taken?"""
        return self.without_state == "refuse"

    def source(self, name: str) -> Source:
        """Make the source with this name."""
        options = self.sources[name]
        return of(options)(options, self.public_url or "")

    def unneeded(self, route: Route) -> set[str]:
        """Return without which servers, by the names of a process's checks, `route` is served."""
        # A cluster's nodes that are away refuse their share only.
        results = {"results", "shards"} if route.answer == "accept" else {"shards"}
        state = set() if route.identified and self.claims_required else {"state"}
        return results | state

    @property
    def paths(self) -> list[str]:
        """The paths of routes and results, by which requests are counted."""
        return [*dict.fromkeys(route.path for route in self.routes), RESULTS]

    @property
    def tasks(self) -> list[TaskSettings]:
        """The tasks of all routes: of each its own, and then its further ones."""
        return [task for route in self.routes for task in (route, *route.also)]

    @property
    def dynamic_paths(self) -> list[str]:
        """The paths of routes with dynamic queues."""
        return list(dict.fromkeys(route.path for route in self.routes if route.dynamic))

    @property
    def tasks_by_queue(self) -> dict[str, TaskSettings]:
        """The queues to which messages may go, each with the task by which it is declared."""
        # A dynamic route knows nothing of its static queue; another route may.
        ordered = sorted(self.tasks, key=lambda task: not task.dynamic)
        found = {queue: task for task in ordered for queue in task.queue_names}
        return {queue: found[queue] for queue in self.queues}

    @property
    def queues(self) -> list[str]:
        """The queues to which messages may go."""
        return sorted({queue for task in self.tasks for queue in task.queue_names})

    @property
    def consumed_as(self) -> list[str]:
        """The names that a worker's -Q has for all queues."""
        return sorted({name for task in self.tasks for name in task.consumed_as})

    @property
    def fair_setting(self) -> str:
        """What GATEWAY_FAIR_QUEUES has for all queues; empty: there are no fair ones."""
        return ",".join(sorted({task.fair_setting for task in self.tasks} - {""}))

    @property
    def queues_by_task(self) -> dict[str, list[str]]:
        """The queues to which each task may be sent."""
        found: dict[str, set[str]] = {}
        for task in self.tasks:
            found.setdefault(task.task, set()).update(task.queue_names)
        return {task: sorted(queues) for task, queues in found.items()}

    @property
    def paths_by_queue(self) -> dict[str, list[str]]:
        """The paths of the routes whose tasks, also further ones, may go to each queue."""
        found: dict[str, set[str]] = {}
        for route in self.routes:
            for task in (route, *route.also):
                for queue in task.queue_names:
                    found.setdefault(queue, set()).add(route.path)
        return {queue: sorted(paths) for queue, paths in found.items()}


def _is_amqp(url: SecretStr) -> bool:
    return urlsplit(url.get_secret_value()).scheme.startswith("amqp")

"""Every setting and route, validated once.

Where the values come from is `settings.py`'s matter; the defaults stand here.
"""

from __future__ import annotations

import re
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

BROKER_SCHEMES = ("amqp", "amqps", "redis", "rediss")
RESULT_SCHEMES = ("redis", "rediss", "sentinel")
_PARAM = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def _listed(value: Any) -> Any:
    """Take one URL, a `;`-separated text of them as Celery does, or a list."""
    if isinstance(value, str):
        return value.split(";")
    return value if isinstance(value, list) else [value]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Route(_Model):
    """One path and the task that its requests become."""

    path: str = Field(pattern=r"^/[^\s?#]*$")
    task: str = Field("api.core.main", min_length=1)
    queue: str = Field("celery", min_length=1, max_length=255)
    answer: Literal["wait"] = "wait"
    deadline: Seconds | None = None
    content_type: str = Field("text/plain; charset=utf-8", pattern=r"^[\x20-\x7e]+$")
    durable: bool = False
    declare: bool = True
    queue_type: Literal["classic", "quorum"] = "classic"
    queue_arguments: dict[str, str | int | bool] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Route:
        params = _PARAM.findall(self.path)
        if len(set(params)) != len(params) or "{" in _PARAM.sub("", self.path):
            raise ValueError("path: each parameter is written {name}, with a name of its own")
        if self.queue == "celery" and (self.queue_type != "classic" or self.queue_arguments):
            raise ValueError(
                "queue: `celery` never gets arguments, Celery declares it without; "
                "give the queue another name"
            )
        return self

    def arguments(self) -> dict[str, str | int | bool]:
        """Return the arguments its queue is declared with."""
        kind = {} if self.queue_type == "classic" else {"x-queue-type": self.queue_type}
        return {**kind, **self.queue_arguments}


class TLS(_Model):
    """For amqps:// and rediss://: paths of PEM files."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True

    @model_validator(mode="after")
    def _readable(self) -> TLS:
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: no such file: {path}")
        if self.key and not self.cert:
            raise ValueError("key: needs cert beside it")
        return self

    def context(self) -> ssl.SSLContext:
        """Return the client's TLS context."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Config(_Model):
    """The settings of a gateway; times in seconds, sizes in bytes, limits per process."""

    strategy: Literal["blocking", "threadpool", "ioloop", "gevent", "pika", "redis"] = "redis"
    broker_url: Annotated[list[SecretStr], BeforeValidator(_listed)] = [
        SecretStr("amqp://guest:guest@127.0.0.1:5672//")
    ]
    result_backend: SecretStr | None = SecretStr("redis://127.0.0.1:6379/0")
    result_key_prefix: str = ""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)
    uds: Path | None = None
    processes: int = Field(1, ge=1, le=256)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8001, ge=0, le=65_535)
    timeout: Seconds = 10.0
    confirm_timeout: Seconds = 3.0
    max_in_flight: int = Field(10_000, ge=1)
    threads: int = Field(64, ge=1, le=1_000)
    max_body: int = Field(1024 * 1024, ge=0, le=128 * 1024 * 1024)
    max_header: int = Field(16 * 1024, ge=256, le=64 * 1024)
    body_timeout: Seconds = 10.0
    idle_timeout: Seconds = 75.0
    grace: Seconds = 30.0
    backlog: int = Field(4_096, ge=1)
    trusted_proxies: list[str] = ["127.0.0.1", "::1"]
    log_format: Literal["text", "json"] = "text"
    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    tls: TLS = TLS()
    routes: list[Route] = [Route(path="/")]

    @field_validator("broker_url")
    @classmethod
    def _brokers(cls, urls: list[SecretStr]) -> list[SecretStr]:
        for url in urls:
            _check_url(url.get_secret_value(), BROKER_SCHEMES)
        return urls

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, texts: list[str]) -> list[str]:
        texts = [text.strip() for text in texts]
        for text in texts:
            ip_network(text)
        return texts

    @field_validator("result_backend")
    @classmethod
    def _store(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _check_url(url.get_secret_value(), RESULT_SCHEMES)
        return url

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = []
        if not self.results and self.strategy != "pika":
            problems.append(f"result_backend: {self.strategy} needs one; only pika does without")
        if not self.amqp:
            if self.strategy not in ("redis", "ioloop"):
                problems.append(
                    f"strategy: {self.strategy} needs an AMQP broker; "
                    "with a Redis broker only redis and ioloop work"
                )
            if len(self.brokers) > 1:
                problems.append("broker_url: a list of brokers needs AMQP")
        if len({urlsplit(broker).scheme for broker in self.brokers}) > 1:
            problems.append("broker_url: TLS is for all brokers of a list or for none")
        if self.strategy == "gevent" and self.loop == "uvloop":
            problems.append("loop: gevent runs on asyncio's own loop; use auto or asyncio")
        paths = [_PARAM.sub("{}", route.path) for route in self.routes]
        problems += [
            f"routes: two take {path}" for path in {p for p in paths if paths.count(p) > 1}
        ]
        if not self.routes:
            problems.append("routes: at least one is needed")
        declared: dict[str, tuple[bool, dict[str, Any]]] = {}
        for route in self.routes:
            kind = (route.declare, route.arguments())
            if declared.setdefault(route.queue, kind) != kind:
                problems.append(f"routes: the queue {route.queue} is declared in different ways")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def brokers(self) -> list[str]:
        """The broker URLs, secrets included."""
        return [url.get_secret_value() for url in self.broker_url]

    @property
    def results(self) -> str:
        """The result store's URL, secrets included; empty where there is none."""
        return self.result_backend.get_secret_value() if self.result_backend else ""

    @property
    def amqp(self) -> bool:
        """Is the broker an AMQP one (and not the Redis that `gateway dev` embeds)?"""
        return urlsplit(self.brokers[0]).scheme.startswith("amqp")

    def deadline(self, route: Route) -> float:
        """Return the seconds that a request on `route` has."""
        return route.deadline or self.timeout


def _check_url(url: str, schemes: tuple[str, ...]) -> None:
    """Raise ValueError, without quoting the URL, unless it can be connected to."""
    needed = f"a URL with a host is needed that begins with {':// or '.join(schemes)}://"
    try:
        parts = urlsplit(url)
        # A sentinel URL lists several hosts, which urlsplit takes for one with a bad port.
        several = parts.scheme == "sentinel"
        if parts.scheme in schemes and parts.hostname and (several or parts.port != 0):
            return
    except ValueError as exc:
        raise ValueError(needed) from exc
    raise ValueError(needed)

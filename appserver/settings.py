"""Make the app server's settings from the gateway's environment variables.

docs/appserver.md has the reason for each default.
"""

from __future__ import annotations

import math
import random
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from celery.exceptions import ImproperlyConfigured
from kombu.transport import TRANSPORT_ALIASES as TRANSPORTS
from redis.backoff import NoBackoff
from redis.retry import Retry

from appserver.celery_setup import STORES
from appserver.queues import task_queues
from appserver.task_stream import FALSE

BROKER_URL = "amqp://guest:guest@127.0.0.1:5672//"
RESULT_BACKEND = "redis://127.0.0.1:6379/0"

RESULT_EXPIRES = 300  # seconds
BROKER_HEARTBEAT = 10  # seconds
VISIBILITY_TIMEOUT = 600  # seconds until Redis, as a broker, gives a task to another worker
PREFETCH = 16  # messages for each process, thread or greenlet of the pool


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Make the app's configuration from the gateway's environment variables.

    Raises ImproperlyConfigured where a variable has a value that cannot be used.
    """
    broker = environ.get("GATEWAY_BROKER_URL") or BROKER_URL
    results = environ.get("GATEWAY_RESULT_BACKEND", RESULT_BACKEND)
    return {
        **_broker(broker, environ),
        **_results(results, environ),
        **_worker(environ),
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "task_ignore_result": False,
        "task_track_started": False,
        "task_send_sent_event": False,
        "task_default_queue": "celery",
        "task_queues": task_queues(environ.get("GATEWAY_QUEUES", "")),
    }


def _worker(environ: Mapping[str, str]) -> dict[str, Any]:
    chatter = environ.get("GATEWAY_WORKER_CHATTER", "0").lower() not in FALSE
    return {
        "worker_consumer": f"appserver.consumer:{'Prompt' if chatter else 'Quiet'}Consumer",
        "worker_send_task_events": False,
        "worker_prefetch_multiplier": PREFETCH,
        "worker_detect_quorum_queues": True,
        # A cancelled task has had only some of its effects, and no request gets its answer.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": True,
        "worker_log_format": "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s",
        "worker_task_log_format": (
            "%(asctime)s %(levelname)s %(processName)s %(task_name)s[%(task_id)s]: %(message)s"
        ),
    }


def _broker(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Make the broker's settings; `url` may be a list separated by ``;`` and tried in turn."""
    schemes = {part.partition(":")[0] for part in url.split(";")}
    if unknown := sorted(each for each in schemes if each.partition("+")[0] not in TRANSPORTS):
        raise ImproperlyConfigured(
            f"GATEWAY_BROKER_URL begins with {unknown[0]!r}; it has to begin with amqp, amqps, "
            "redis or rediss"
        )
    _check_numbers("GATEWAY_BROKER_URL", url)
    if len(schemes) > 1:
        raise ImproperlyConfigured(
            f"GATEWAY_BROKER_URL mixes {', '.join(sorted(schemes))}: use one scheme for all URLs"
        )
    # Each worker begins with another node, or all connections of a cluster would be on one.
    urls = url.split(";")
    first = random.randrange(len(urls))
    settings: dict[str, Any] = {
        "broker_url": ";".join(urls[first:] + urls[:first]),
        "broker_heartbeat": BROKER_HEARTBEAT,
    }
    scheme = schemes.pop()
    if scheme == "amqps":
        settings["broker_use_ssl"] = _amqp_tls(environ)
    elif scheme == "rediss":
        settings["broker_use_ssl"] = _redis_tls(environ)
    if scheme not in ("amqp", "amqps"):
        settings["broker_transport_options"] = {"visibility_timeout": VISIBILITY_TIMEOUT}
    return settings


def _check_numbers(name: str, url: str) -> None:
    """Raise ImproperlyConfigured where host, port or the database of Redis cannot be read.

    The error does not quote the URL, which may have a password.
    """
    for part in url.split(";"):
        scheme = part.partition(":")[0]
        try:
            parts = urlsplit(part)
            wrong = "the port is no number that can be used" if parts.port == 0 else ""
            database = parts.path.strip("/") if scheme in ("redis", "rediss", "sentinel") else ""
        except ValueError:
            wrong, database = "host or port cannot be read", ""
        if database and not database.isdecimal():
            wrong = "the database is no number"
        if wrong:
            raise ImproperlyConfigured(
                f"{name}: {wrong}; write it as {scheme}://USER:PASSWORD@HOST:PORT/..., and in a "
                "password # / ? @ : [ ] as %23 %2F %3F %40 %3A %5B %5D"
            )


def _results(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Make the result backend's settings; an empty `url` means that nothing is stored."""
    if not url:
        return {"result_backend": None}
    scheme = url.partition(":")[0]
    if scheme not in STORES:
        raise ImproperlyConfigured(
            f"GATEWAY_RESULT_BACKEND begins with {scheme!r}; it has to begin with one of"
            f" {', '.join(STORES)}"
        )
    _check_numbers("GATEWAY_RESULT_BACKEND", url)
    # Celery's own retries are used (below). Those of its Redis backend would multiply them, and do
    # not cover reading.
    options: dict[str, Any] = {"retry_policy": {"max_retries": 0}}
    tls = _redis_tls(environ) if scheme == "rediss" else {}
    if prefix := environ.get("GATEWAY_RESULT_KEY_PREFIX"):
        options["global_keyprefix"] = prefix
    if scheme == "sentinel":
        query = dict(pair for part in url.split(";") for pair in parse_qsl(urlsplit(part).query))
        options["master_name"] = query.get("master_name", "mymaster")
        if query.get("ssl", "").lower() == "true":
            tls = {**_redis_tls(environ), **_own_tls(query)}
        # A Sentinel that does not answer is skipped without retries.
        options["sentinel_kwargs"] = {
            "socket_timeout": 2.0,
            "retry": Retry(NoBackoff(), 0),
            "username": environ.get("GATEWAY_SENTINEL_USERNAME") or None,
            "password": environ.get("GATEWAY_SENTINEL_PASSWORD") or None,
            **({"ssl": True, **tls} if tls else {}),
        }
    settings = {
        "result_backend": url,
        "result_backend_transport_options": options,
        "result_expires": _result_expires(environ),
        # Retries for about 5 s in all, so that a Redis that is restarted still gets the result.
        "result_backend_always_retry": True,
        "result_backend_max_retries": 12,
        "result_backend_base_sleep_between_retries_ms": 100,
        "result_backend_max_sleep_between_retries_ms": 1000,
        "redis_socket_connect_timeout": 2.0,
        "redis_socket_timeout": 3.0,
        "redis_socket_keepalive": True,
    }
    if tls:
        settings["redis_backend_use_ssl"] = tls
    return settings


def _own_tls(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a URL of Sentinels, where Celery reads none about TLS."""
    own: dict[str, Any] = {name: query[name] for name in query if name.startswith("ssl_")}
    if needed := own.get("ssl_cert_reqs"):
        own["ssl_cert_reqs"] = ssl.VerifyMode[f"CERT_{needed.removeprefix('CERT_').upper()}"]
    if "ssl_check_hostname" in own or own.get("ssl_cert_reqs") == ssl.CERT_NONE:
        named = own.get("ssl_check_hostname", "true").lower() == "true"
        own["ssl_check_hostname"] = named and own.get("ssl_cert_reqs") != ssl.CERT_NONE
    return own


def _result_expires(environ: Mapping[str, str]) -> int:
    text = environ.get("GATEWAY_RESULT_EXPIRES") or str(RESULT_EXPIRES)
    try:
        # Celery's Redis backend needs whole seconds, and 0 means that a result is kept for ever.
        seconds = math.ceil(float(text))
    except (ValueError, OverflowError):
        seconds = 0
    if not 1 <= seconds <= 86_400:  # the same limits as in the gateway
        raise ImproperlyConfigured(
            f"GATEWAY_RESULT_EXPIRES is {text!r}; it has to be a number of seconds up to 86400"
        )
    return seconds


def _verify(environ: Mapping[str, str]) -> bool:
    return environ.get("GATEWAY_TLS_VERIFY", "1").lower() not in FALSE


def _amqp_tls(environ: Mapping[str, str]) -> dict[str, Any]:
    verify = _verify(environ)
    return {
        "ca_certs": environ.get("GATEWAY_TLS_CA") or None,
        "certfile": environ.get("GATEWAY_TLS_CERT") or None,
        "keyfile": environ.get("GATEWAY_TLS_KEY") or None,
        "cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE,
        # kombu replaces a None here by the URL's host. py-amqp verifies the certificate's name only
        # if it gets one.
        **({"server_hostname": None} if verify else {}),
    }


def _redis_tls(environ: Mapping[str, str]) -> dict[str, Any]:
    verify = _verify(environ)
    return {
        "ssl_ca_certs": environ.get("GATEWAY_TLS_CA") or None,
        "ssl_certfile": environ.get("GATEWAY_TLS_CERT") or None,
        "ssl_keyfile": environ.get("GATEWAY_TLS_KEY") or None,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE,
        "ssl_check_hostname": verify,
    }

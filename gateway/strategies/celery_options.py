"""Celery's and kombu's options for TLS and Sentinel."""

from __future__ import annotations

import ssl
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from gateway.config.settings import Config
from gateway.config.urls import master_name

RESULT_TIMEOUT = 3  # seconds for one command to the result store


def broker_tls(config: Config) -> dict[str, Any] | None:
    """Return `broker_use_ssl`."""
    if not config.brokers[0].startswith("amqps:"):
        return None
    tls = config.tls
    return {
        "ca_certs": tls.ca and str(tls.ca),
        "certfile": tls.cert and str(tls.cert),
        "keyfile": tls.key and str(tls.key),
        "cert_reqs": ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE,
        # py-amqp verifies a name only if it gets one; kombu replaces None by the host.
        **({"server_hostname": None} if tls.verify else {}),
    }


def sentinel(config: Config) -> dict[str, Any]:
    """Return those `result_backend_transport_options` that Celery does not take from the URL."""
    if not config.results.startswith("sentinel:"):
        return {}
    # A Sentinel that does not answer is skipped without retries.
    patience = {"socket_timeout": RESULT_TIMEOUT, "retry": Retry(NoBackoff(), 0)}
    return {"master_name": master_name(config.results), "sentinel_kwargs": patience}

"""What this service is called in traces and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

from gateway.config.settings import Config

#: The name of the service, unless `trace_service` or OTEL_SERVICE_NAME is set.
SERVICE = "celery-gateway"


def resource(config: Config, further: Mapping[str, str] = {}) -> Resource:
    """Return the service's attributes: OpenTelemetry's variables go before `further` ones."""
    named = OTELResourceDetector().detect().attributes
    own = {SERVICE_NAME: config.trace_service} if config.trace_service else {}
    return Resource.create({SERVICE_NAME: SERVICE, **further, **named, **own})

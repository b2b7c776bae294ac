"""Which page is where."""

from __future__ import annotations

from typing import Any

from tornado.web import RequestHandler

from gateway.admin.pages.deliveries import Deliveries
from gateway.admin.pages.delivery import OneDelivery, Replay
from gateway.admin.pages.view import File, Session, Unknown
from gateway.process.supervisor import Supervisor


def routes(supervisor: Supervisor) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the pages' handlers for Tornado."""
    found: list[tuple[str, type[RequestHandler]]] = [
        ("/(?:deliveries)?", Deliveries),
        ("/deliveries/([^/]+)", OneDelivery),
        ("/deliveries/([^/]+)/replay", Replay),
        ("/session", Session),
        (r"/page/([a-z]+\.(?:css|js))", File),
        ("/.*", Unknown),
    ]
    return [(path, handler, {"supervisor": supervisor}) for path, handler in found]

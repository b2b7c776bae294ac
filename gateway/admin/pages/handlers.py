"""Which page is where."""

from __future__ import annotations

from typing import Any

from tornado.web import RequestHandler

from gateway.admin.api.operations import OPERATIONS
from gateway.admin.pages.compared import Compare
from gateway.admin.pages.deliveries import Again, Deliveries
from gateway.admin.pages.delivery import Edit, OneDelivery
from gateway.admin.pages.failures import Failures
from gateway.admin.pages.overview import Overview
from gateway.admin.pages.routes import Routes
from gateway.admin.pages.servers import Servers
from gateway.admin.pages.sources import Sources
from gateway.admin.pages.view import Act, File, Session, Shared, Unknown
from gateway.admin.pages.workers import Workers
from gateway.history.gateways import Gateways
from gateway.history.history import History
from gateway.process.supervisor import Supervisor


def routes(
    supervisor: Supervisor, history: History, gateways: Gateways
) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the pages' handlers for Tornado."""
    shared = {"shared": Shared(supervisor, history, gateways)}
    acts = [
        (each.pattern.removeprefix("/api"), Act, {**shared, "operation": each})
        for each in OPERATIONS
        if each.method == "POST"
    ]
    found: list[tuple[str, type[RequestHandler]]] = [
        ("/", Overview),
        ("/deliveries", Deliveries),
        ("/deliveries/([^/]+)", OneDelivery),
        ("/deliveries/([^/]+)/edit", Edit),
        ("/deliveries/([^/]+)/compare", Compare),
        ("/failures()", Failures),
        ("/failures/([0-9a-f]{16})", Failures),
        ("/again", Again),
        ("/routes", Routes),
        ("/sources", Sources),
        ("/workers", Workers),
        ("/servers", Servers),
        ("/session", Session),
        (r"/page/([a-z]+\.(?:css|js))", File),
        ("/.*", Unknown),
    ]
    return [*acts, *((path, handler, shared) for path, handler in found)]

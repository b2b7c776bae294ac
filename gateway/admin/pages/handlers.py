"""Which page is where."""

from __future__ import annotations

from typing import Any

from tornado.web import RequestHandler

from gateway.admin.pages.compared import Compare
from gateway.admin.pages.deliveries import Again, Deliveries
from gateway.admin.pages.delivery import Edit, OneDelivery, Replay
from gateway.admin.pages.failures import Change, Failures, Test
from gateway.admin.pages.overview import Overview
from gateway.admin.pages.routes import Routes
from gateway.admin.pages.servers import Servers
from gateway.admin.pages.sources import Sources
from gateway.admin.pages.view import File, Session, Shared, Unknown
from gateway.admin.pages.workers import Workers
from gateway.history.gateways import Gateways
from gateway.history.history import History
from gateway.process.supervisor import Supervisor


def routes(
    supervisor: Supervisor, history: History, gateways: Gateways
) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the pages' handlers for Tornado."""
    found: list[tuple[str, type[RequestHandler]]] = [
        ("/", Overview),
        ("/deliveries", Deliveries),
        ("/deliveries/([^/]+)", OneDelivery),
        ("/deliveries/([^/]+)/replay", Replay),
        ("/deliveries/([^/]+)/edit", Edit),
        ("/deliveries/([^/]+)/compare", Compare),
        ("/failures()", Failures),
        ("/failures/([0-9a-f]{16})", Failures),
        ("/failures/([0-9a-f]{16})/(mute|resolve)", Change),
        ("/failures/test", Test),
        ("/again", Again),
        ("/routes", Routes),
        ("/sources", Sources),
        ("/workers", Workers),
        ("/servers", Servers),
        ("/session", Session),
        (r"/page/([a-z]+\.(?:css|js))", File),
        ("/.*", Unknown),
    ]
    shared = {"shared": Shared(supervisor, history, gateways)}
    return [(path, handler, shared) for path, handler in found]

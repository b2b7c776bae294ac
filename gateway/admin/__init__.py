"""Serve health, readiness and metrics on a port of their own.

GET /healthz: 200 if at least one child's loop answers within a second, and all others do so or are
    just being started; otherwise 503.
GET /readyz: 200 if any child that is not draining is connected to all servers that some route
    needs, otherwise 503; JSON: ``{"ready": true, "version": "1.0", "strategy": "redis",
    "uptime": 7, "routes": {"/": true}, "children": [{"pid": 7, "broker": ""}]}``, where a child's
    text says what is wrong, and the uptime is in seconds. ``"warnings"`` is a list of texts about
    what fails nothing yet, as a queue that no worker consumes, or a gateway that differs.
GET /readyz?route=/path: the same for this route, as the configuration writes it; if it has no such
    route, 404 and ``{"error": "..."}``.
GET /metrics: the sums of all processes, in Prometheus' text format or in OpenMetrics.
/api/: the journal, the history and the gateways, as `gateway.admin.api` describes them.
All other paths: the pages of `gateway.admin.pages`.

One page takes a body; no other request needs one, and no client needs a second request on its
connection. What comes to a loopback address has to name an address, or localhost, in its Host.
"""

from __future__ import annotations

import resource
import socket
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.iostream import IOStream
from tornado.routing import Router
from tornado.web import Application, HTTPError, RequestHandler

from gateway import __version__
from gateway.admin.families import expose, families, of_parent
from gateway.clock import time
from gateway.history.gateways import Gateways
from gateway.history.history import History
from gateway.http.head import is_plain
from gateway.process import health
from gateway.process.supervisor import Supervisor

#: Seconds that a scrape waits for a process whose loop does not answer.
SCRAPE = 0.25
#: The most connections that may be open.
CONNECTIONS = 64
#: Seconds within which a request has to arrive, and the most bytes of its header.
ARRIVAL, HEADER = 5.0, 8 * 1024


class AdminServer(HTTPServer):
    """Closes the oldest connection where too many are open.

    So a client that keeps many connections open does not make health probes fail.
    """

    def initialize(self, application: Application) -> None:  # type: ignore[override] # Tornado's way
        super().initialize(
            application,
            no_keep_alive=True,
            idle_connection_timeout=ARRIVAL,
            max_header_size=HEADER,
            max_buffer_size=2 * HEADER,
            chunk_size=HEADER,
            body_timeout=ARRIVAL,
            max_body_size=0,  # a page that takes a body says so
        )
        self._open: list[IOStream] = []
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(CONNECTIONS, files // 4)  # the parent needs some for its children

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._open = [one for one in self._open if not one.closed()]
        if len(self._open) >= self._most:
            self._open.pop(0).close()
        self._open.append(stream)
        super().handle_stream(stream, address)


def admin_server(
    supervisor: Supervisor, history: History, gateways: Gateways, sockets: list[socket.socket]
) -> HTTPServer:
    """Serve the admin pages on `sockets`, which are bound and listening."""
    arguments = {"supervisor": supervisor, "gateways": gateways}
    parent = supervisor, history, gateways
    routes = [
        ("/healthz", Health, arguments),
        ("/readyz", Readiness, arguments),
        ("/metrics", Exposition, arguments),
        ("/api/.*", _Later("gateway.admin.api.handlers", *parent)),
        ("/.*", _Later("gateway.admin.pages.handlers", *parent)),
    ]
    server = AdminServer(_application(routes))
    server.add_sockets(sockets)
    return server


def _application(routes: list[Any]) -> Application:
    return Application(routes, log_function=lambda handler: None)


class _Later(Router):
    """Loads handlers with the first request to them: they are most of what the parent loads."""

    def __init__(self, module: str, *arguments: object):
        self._module, self._arguments = module, arguments
        self._application: Application | None = None

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        if self._application is None:
            routes = import_module(self._module).routes
            self._application = _application(routes(*self._arguments))
        return self._application.find_handler(request, **kwargs)


class _Page(RequestHandler):
    def initialize(self, supervisor: Supervisor, gateways: Gateways) -> None:
        self.supervisor, self.gateways = supervisor, gateways

    def prepare(self) -> None:
        """Refuse another web page of the same machine, whose name leads to this address."""
        local: str = self.request.connection.stream.socket.getsockname()[0]  # type: ignore[union-attr]
        if ip_address(local).is_loopback and not is_plain(self.request.host_name):
            raise HTTPError(403)

    async def head(self) -> None:
        if (answered := self.get()) is not None:
            await answered

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
        super().write_error(status_code, **kwargs)


class Health(_Page):
    def prepare(self) -> None:
        """Answer a probe whatever it calls this address; it learns nothing else."""

    async def get(self) -> None:
        answers = await health.ask(self.supervisor.children)
        alive = health.alive(answers)
        self.set_status(200 if alive else 503)
        answering = sum(checks is not None for _, checks in answers)
        self.write({"healthy": alive, "children": answering})


class Readiness(_Page):
    async def get(self) -> None:
        paths = list(dict.fromkeys(route.path for route in self.supervisor.config.routes))
        asked = self.get_query_argument("route", "")
        if asked and asked not in paths:
            self.set_status(404)
            self.write({"error": f"there is no route {asked!r}; there are {', '.join(paths)}"})
            return
        answers = await health.ask(self.supervisor.children)
        serves = partial(health.serves, self.supervisor, answers)
        ready = serves(asked)
        self.set_status(200 if ready else 503)
        differing = (str(each) for each in self.gateways.differences if each.wrong)
        silent = {"loop": "no answer"}
        self.write({
            "ready": ready,
            "routes": {each: serves(each) for each in ([asked] if asked else paths)},
            "version": __version__,
            "strategy": self.supervisor.config.strategy,
            "uptime": int(time() - self.supervisor.started),
            "warnings": [*health.warnings(answers), *differing],
            "children": [{"pid": child.pid, **(silent if checks is None else checks)}
                         for child, checks in answers],
        })  # fmt: skip


class Exposition(_Page):
    async def get(self) -> None:
        answers = await health.ask(self.supervisor.children, SCRAPE)
        own = of_parent(self.supervisor, answers, self.gateways.differences)
        accept = self.request.headers.get("Accept", "")
        data, content_type = expose(families(self.supervisor.totals(), own), accept)
        self.set_header("Content-Type", content_type)
        self.write(data)

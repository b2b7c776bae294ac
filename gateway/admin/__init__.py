"""Serve health, readiness and metrics on a port of their own.

GET /healthz: 200 if at least one child's loop answers within a second, and all others do so or are
    just being started; otherwise 503.
GET /readyz: 200 if any child is connected to its broker and results and is not draining, otherwise
    503; JSON: ``{"ready": true, "version": "1.0", "strategy": "redis", "children": [{"pid": 7,
    "broker": "", "results": ""}]}``, where a child's text says what is wrong.
GET /metrics: Prometheus' text format, the sums of all processes.
GET /: a page that shows readiness and metrics, updated every two seconds.
/api/: the deliveries of the journal, as `gateway.admin.api` describes them.

No request needs a body, and no client needs a second request on its connection.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from gateway import __version__
from gateway.admin.api import handlers as api
from gateway.admin.exposition import CONTENT_TYPE, expose
from gateway.process.supervisor import Supervisor

_DASHBOARD = Path(__file__).with_name("dashboard.html")
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
            max_body_size=0,
        )
        self._open: list[IOStream] = []

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._open = [one for one in self._open if not one.closed()]
        if len(self._open) == CONNECTIONS:
            self._open.pop(0).close()
        self._open.append(stream)
        super().handle_stream(stream, address)


def admin_server(supervisor: Supervisor, sockets: list[socket.socket]) -> HTTPServer:
    """Serve the admin pages on `sockets`, which are bound and listening."""
    to = {"supervisor": supervisor}
    server = AdminServer(
        Application(
            [
                ("/", Dashboard),
                ("/healthz", Health, to),
                ("/readyz", Readiness, to),
                ("/metrics", Exposition, to),
                *api.routes(supervisor),
            ],
            log_function=lambda handler: None,
        )
    )
    server.add_sockets(sockets)
    return server


class _Page(RequestHandler):
    def initialize(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor


class Health(_Page):
    async def get(self) -> None:
        children = list(self.supervisor.children)
        answers = await asyncio.gather(*(child.ask() for child in children))
        silent = [child for child, it in zip(children, answers, strict=True) if it is None]
        # A child that is being started cannot answer yet; that must not get the others killed.
        alive = len(silent) < len(children) and all(child.starting for child in silent)
        self.set_status(200 if alive else 503)
        self.write({"healthy": alive, "children": len(children) - len(silent)})


class Readiness(_Page):
    async def get(self) -> None:
        children = list(self.supervisor.children)
        answers = await asyncio.gather(*(child.ask() for child in children))
        ready = not self.supervisor.draining and any(
            checks is not None and not any(checks.values()) for checks in answers
        )
        self.set_status(200 if ready else 503)
        self.write(
            {
                "ready": ready,
                "version": __version__,
                "strategy": self.supervisor.config.strategy,
                "children": [
                    {"pid": child.pid, **(checks if checks is not None else {"loop": "no answer"})}
                    for child, checks in zip(children, answers, strict=True)
                ],
            }
        )


class Exposition(_Page):
    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE)
        self.write(expose(self.supervisor.totals()))


class Dashboard(RequestHandler):
    def get(self) -> None:
        # The page loads nothing from other servers, and may not be shown in a frame.
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; frame-ancestors 'none'",
        )
        self.write(_DASHBOARD.read_bytes())

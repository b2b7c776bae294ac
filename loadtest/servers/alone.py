"""Tornado alone: answer each POST with its body after a while, without any relay.

    python -m loadtest.servers.alone --port N --seconds 0.02 [--below] [--announce N]

``--below``: by an HTTPMessageDelegate below RequestHandler. ``--announce``: print a line
whenever so many requests are waiting at once.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    ResponseStartLine,
)
from tornado.web import Application, RequestHandler

new_event_loop: Callable[[], asyncio.AbstractEventLoop] | None
try:  # the gateway's own choice
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = None


class Handler(RequestHandler):
    """What one would write in an evening."""

    def initialize(self, seconds: float, change: Callable[[int], None]) -> None:
        self.seconds, self.change = seconds, change

    async def post(self) -> None:
        self.change(1)
        await asyncio.sleep(self.seconds)
        self.change(-1)
        self.write(self.request.body)


class Delegate(HTTPMessageDelegate):
    """What Tornado's HTTP/1.1 costs without a framework on top."""

    def __init__(self, connection: HTTPConnection, seconds: float, change: Callable[[int], None]):
        self._connection, self._seconds, self._change = connection, seconds, change
        self._body: list[bytes] = []

    def data_received(self, chunk: bytes) -> None:
        self._body.append(chunk)

    def finish(self) -> None:
        self._change(1)
        asyncio.get_running_loop().call_later(self._seconds, self._answer)

    def on_connection_close(self) -> None:
        pass

    def _answer(self) -> None:
        self._change(-1)
        body = b"".join(self._body)
        headers = HTTPHeaders({"Content-Length": str(len(body))})
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", 200, "OK"), headers, body)
        self._connection.finish()


class Below(HTTPServerConnectionDelegate):
    """Makes a `Delegate` of each request."""

    def __init__(self, *settings: Any):
        self._settings = settings

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> Delegate:
        return Delegate(request_conn, *self._settings)


async def serve(options: argparse.Namespace) -> None:
    waiting = 0

    def change(by: int) -> None:
        nonlocal waiting
        waiting += by
        if by > 0 and waiting == options.announce:
            print(f"holding {waiting}", flush=True)

    if options.below:
        server = HTTPServer(Below(options.seconds, change))
    else:
        settings = {"seconds": options.seconds, "change": change}
        server = HTTPServer(Application([("/.*", Handler, settings)]))
    server.listen(options.port, "127.0.0.1", backlog=4_096)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="alone", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--below", action="store_true")
    parser.add_argument("--announce", type=int, default=0)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()

"""An HTTP server that a test plays: it is told each request, and says what is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple


class Asked(NamedTuple):
    """A request; the names of its headers are in lower case, their values are joined by commas."""

    path: str
    headers: dict[str, str]
    body: bytes


#: Status, headers and body.
Said = tuple[int, Mapping[str, str], bytes]


@contextmanager
def served(answer: Callable[[Asked], Said], port: int = 0) -> Iterator[int]:
    """Answer each request in a thread of its own, at `port` (0: a free one); give the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = self.headers
            headers = {name.lower(): ", ".join(given.get_all(name, ())) for name in given}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            status, more, said = answer(Asked(self.path, headers, body))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(said)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()

"""An HTTP server that answers with what it is sent, except for some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Condition, Event, Thread

#: Seconds for which it answers nobody, and requests for which it lets one wait.
STALL, LATER = 1.0, 15


@contextmanager
def server(fault: str, seen: list[tuple[Message, bytes]] | None = None) -> Iterator[str]:
    """Answer POSTs with their bodies, but every 50th as `fault` says, and only one with `hang`;
    give the URL.

    What comes is put into `seen`: headers and body.
    """
    requests, bodies = count(1), [b""]
    came, ended = Condition(), Event()

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(body)
            if seen is not None:
                seen.append((self.headers, body))
            with came:
                number = next(requests)
                came.notify_all()
                status, faulty = 200, number % 50 == 0
                if faulty and fault == "stall":
                    time.sleep(STALL)
                if faulty and fault == "late":
                    came.wait_for(lambda: len(bodies) > number + LATER)
            if number == 50 and fault == "hang":
                ended.wait()
            if faulty and fault == "close":
                self.close_connection = True
                return
            if faulty and fault == "status":
                status = 503
            if faulty and fault == "expired":
                status = 504
            if faulty and fault == "redirect":
                status = 302
            if faulty and fault == "other":
                body = bodies[-40]
            if faulty and fault == "twice":
                body += body
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # Room for all who connect at once: the kernel drops whom there is none for, for a second.
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Echo) as http:
        thread = Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/"
        finally:
            ended.set()
            http.shutdown()
            thread.join()

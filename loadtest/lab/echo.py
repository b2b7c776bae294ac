"""An echo server by one of asyncio's interfaces, on one of two loops.

python -m loadtest.lab.echo --port N --interface streams --loop uvloop
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import cast

_READ = 64 * 1024
_BACKLOG = 1_024


async def sockets(port: int) -> None:
    """`loop.sock_recv` and `loop.sock_sendall`: the loop only says when a socket is ready."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def echo(connection: socket.socket) -> None:
        with connection:
            while data := await loop.sock_recv(connection, _READ):
                await loop.sock_sendall(connection, data)

    with socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as server:
        server.setblocking(False)
        while True:
            connection, _ = await loop.sock_accept(server)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(echo(connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def streams(port: int) -> None:
    """`asyncio.start_server`: Python code of asyncio's own on either loop's transports."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", port, backlog=_BACKLOG)
    await server.serve_forever()


class Echo(asyncio.Protocol):
    """Writes what it is given to the loop's own transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def protocols(port: int) -> None:
    """`loop.create_server` with a protocol: callbacks, without a task."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", port, backlog=_BACKLOG)
    await server.serve_forever()


INTERFACES: dict[str, Callable[[int], Awaitable[None]]] = {
    "sockets": sockets,
    "streams": streams,
    "protocols": protocols,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="echo", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interface", choices=INTERFACES, required=True)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    options = parser.parse_args()

    async def serve() -> None:
        await INTERFACES[options.interface](options.port)

    with asyncio.Runner(loop_factory=import_module(options.loop).new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()

"""One serving process, started by its parent as ``gateway.process.child CONTROL-FD [gevent]``.

The parent sends the configuration, the listening sockets' descriptors and the metrics file's
over the control socket, then asks after the child's health. When the parent is gone, the
child drains and ends.
"""

import sys

if "gevent" in sys.argv:
    # Before any other import: what has been imported by then stays unpatched.
    from gevent import monkey

    monkey.patch_all()

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
from contextlib import suppress
from time import monotonic
from typing import Any

from gateway import log
from gateway.celery_message import TaskIds
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.failpoints import Failpoint
from gateway.http.server import Server
from gateway.metrics import Metrics
from gateway.process.handover import HEAD, Start, read
from gateway.relay.relay import Relay
from gateway.strategies import find

logger = logging.getLogger(__name__)

_UNUSABLE = 78  # the exit code: EX_CONFIG in sysexits.h
# mallopt(3); bytes
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _LARGE = -3, -1, 1024 * 1024


class Child:
    """Serves until it is told to stop."""

    def __init__(self, config: Config, sockets: list[socket.socket], metrics_fd: int):
        self._config = config
        self._sockets = sockets
        self._stopping = asyncio.Event()
        metrics = Metrics(metrics_fd, config.paths)
        ids = TaskIds()
        strategy = find(config.strategy)(config, metrics, ids.prefix)
        failpoint = Failpoint(os.environ.get("GATEWAY_FAILPOINT", ""))
        self._relay = Relay(config, strategy, metrics, ids, failpoint)
        self._server = Server(config, self._relay, metrics)

    async def run(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        reader, writer = await asyncio.open_connection(sock=control)
        answering = asyncio.create_task(self._answer_parent(reader, writer))
        await self._relay.start()
        await self._connected(self._config.confirm_timeout)
        self._server.listen(self._sockets)
        logger.info("serving with the strategy %s", self._config.strategy)
        await self._stopping.wait()
        logger.info("draining")
        unanswered = await self._server.drain(self._config.grace)
        if unanswered:
            logger.warning("drained: cut off after `grace`, without an answer: %d", unanswered)
        else:
            logger.info("drained: all requests are answered")
        answering.cancel()
        await self._relay.stop()
        writer.close()

    async def _connected(self, seconds: float) -> None:
        """Leave new connections to siblings until they can be served, but not for ever."""
        end = monotonic() + seconds
        while any(self._relay.checks().values()) and monotonic() < end:
            if self._stopping.is_set():
                return
            await asyncio.sleep(0.01)

    def _stop(self) -> None:
        # A terminal tells us, too, what our parent tells us: only it counts, and kills.
        self._stopping.set()

    async def _answer_parent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer each line that asks with a line that tells how this child is."""
        try:
            while number := await reader.readline():
                health = self._relay.checks()
                if self._server.draining:
                    health["draining"] = "shutting down"
                writer.write(json.dumps([int(number), health]).encode() + b"\n")
        except ConnectionError:
            logger.warning("the parent is gone")
        finally:
            self._stopping.set()


def receive(control: socket.socket) -> Start:
    """Read what the parent sends first; raises SystemExit where this version cannot use it."""
    (size,) = HEAD.unpack(_exactly(control, HEAD.size))
    try:
        return read(_exactly(control, size))
    except ConfigError as exc:
        for problem in exc.problems:
            logger.error("this version cannot use its parent's configuration: %s", problem)
        raise SystemExit(_UNUSABLE) from exc


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        some = control.recv(size - len(data))
        if not some:
            raise SystemExit("the parent is gone")
        data += some
    return data


def _give_memory_back() -> None:
    """Have large blocks returned to the system when they are freed.

    Else glibc keeps up to twice the largest one for good, after a single large body or result.
    """
    with suppress(AttributeError, OSError):  # where the C library is another
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)


def main() -> None:
    _give_memory_back()
    control = socket.socket(fileno=int(sys.argv[1]))
    start = receive(control)
    config = start.config
    listener = log.start(config.log_format)

    async def serve() -> None:
        sockets = [socket.socket(fileno=fd) for fd in start.sockets]
        await Child(config, sockets, start.metrics).run(control)

    try:
        with asyncio.Runner(loop_factory=_loop_factory(config)) as runner:
            runner.run(serve())
    finally:
        listener.stop()


def _loop_factory(config: Config) -> Any:
    if config.waits.patches or config.loop == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None  # `auto`; that an explicit `uvloop` is there was checked by the parent
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()

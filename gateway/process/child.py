"""One serving process, started by its parent with the descriptor of the control socket.

Over the control socket the parent sends the configuration and the descriptors of the listening
sockets and of the metrics file. Then it asks for the child's health. When the parent has ended, the
child drains and ends.
"""

import gc
import sys

# Nothing that is loaded becomes garbage: the collector would take a sixth of the start.
gc.disable()

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
from contextlib import suppress
from typing import Any

from gateway import log
from gateway.amqp.worker_watch import WorkerWatch
from gateway.celery_message import TaskIds
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import ConfigError, PluginError
from gateway.failpoints import Failpoint
from gateway.http.server import Server
from gateway.metric_table import LAG
from gateway.metrics import Metrics
from gateway.process.handover import HEAD, Start, read
from gateway.relay.context import Context
from gateway.relay.relay import Relay
from gateway.strategies import find

logger = logging.getLogger(__name__)

PERIOD = 1.0  # seconds between measurements of the loop's lag
_UNUSABLE = 78  # the exit code: EX_CONFIG in sysexits.h
# mallopt(3); bytes
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _LARGE = -3, -1, 1024 * 1024


class _LoopLag:
    """Measures in each `PERIOD` how late the loop does what is due.

    A loop that is late answers late, whatever the broker and the workers do.
    """

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._due = 0.0  # monotonic seconds
        self._timer: asyncio.TimerHandle  # from `start` on

    def start(self) -> None:
        self._due = monotonic() + PERIOD
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._measure)

    def stop(self) -> None:
        self._timer.cancel()

    def _measure(self) -> None:
        # Some loops round their timers to milliseconds, and so may be early.
        self._metrics.observe(max(0.0, monotonic() - self._due), LAG)
        self.start()


class Child:
    """Serves until a signal or the end of its parent stops it."""

    def __init__(self, config: Config, sockets: list[socket.socket], metrics_fd: int):
        self._config = config
        self._sockets = sockets
        self._stopping = asyncio.Event()
        self._metrics = metrics = Metrics(metrics_fd, config.paths)
        ids = TaskIds()
        strategy = find(config.strategy)(config, metrics, ids.prefix)
        failpoint = Failpoint(os.environ.get("GATEWAY_FAILPOINT", ""))
        self._relay = Relay(Context(config, strategy, metrics, ids, failpoint))
        self._server = Server(config, self._relay, metrics)
        self._lag = _LoopLag(metrics)
        self._workers = WorkerWatch(config, strategy.publisher, metrics)

    def held(self) -> dict[str, int]:
        """Return what this process holds: how many of each, or bytes."""
        return {"connections": self._server.connections, **self._relay.held()}

    async def run(self, control: socket.socket) -> None:
        # Ctrl-C in a terminal does not come here, and a second SIGTERM means nothing: the parent
        # counts its own signals, and kills its children at the second.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        reader, writer = await asyncio.open_connection(sock=control)
        answering = asyncio.create_task(self._answer_parent(reader, writer))
        await self._relay.start()
        self._lag.start()
        await self._workers.start()
        await self._connected(self._config.confirm_timeout)
        # A full collection looks at every object that there is: with the modules and the settings,
        # which remain to the end, it would delay requests for 40 ms again and again.
        gc.collect()
        gc.freeze()
        gc.enable()
        try:
            self._server.listen(self._sockets)
        except OSError as exc:
            raise SystemExit(f"cannot listen: {exc.strerror}") from exc
        logger.info("serving with the strategy %s", self._config.strategy)
        await self._stopping.wait()
        logger.info("draining")
        unanswered = await self._server.drain(self._config.grace)
        if unanswered:
            logger.warning(
                "drained: requests cut off after `grace` without an answer: %d", unanswered
            )
        else:
            logger.info("drained: all requests are answered")
        answering.cancel()
        self._lag.stop()
        await self._workers.stop()
        await self._relay.stop()
        writer.close()

    async def _connected(self, seconds: float) -> None:
        """Wait until the servers are connected, for `seconds` at most, before accepting.

        Meanwhile the siblings take new connections.
        """
        end = monotonic() + seconds
        while any(self._relay.checks().values()) and monotonic() < end:
            if self._stopping.is_set():
                return
            await asyncio.sleep(0.01)

    async def _answer_parent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer each line, a number, with lines of JSON: 0 and warnings, the number and checks.

        A parent of another version reads two values of each line, and passes over other numbers.
        """
        try:
            while number := await reader.readline():
                # A scrape asks before it reads the counters.
                self._metrics.set("gateway_in_flight_bytes", self.held()["bytes"])
                health = self._relay.checks()
                if not self._server.listening:
                    health["starting"] = "no connections are accepted yet"
                if self._server.draining:
                    health["draining"] = "shutting down"
                warnings = self._workers.warnings
                for line in ([0, {"warnings": warnings}], [int(number), health]):
                    writer.write(json.dumps(line).encode() + b"\n")
        except ConnectionError:
            logger.warning("the parent has ended: this process drains")
        finally:
            self._stopping.set()


def receive(control: socket.socket) -> Start:
    """Read the parent's first message; raises SystemExit where this version cannot use it."""
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
        piece = control.recv(size - len(data))
        if not piece:
            raise SystemExit("the parent has ended")
        data += piece
    return data


def _give_memory_back() -> None:
    """Make the C library return large blocks to the system when they are freed.

    Otherwise glibc keeps up to twice the size of the largest block after a single large body or
    result.
    """
    with suppress(AttributeError, OSError):  # if the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)


def main() -> None:
    # A parent of an older version does not block them for its children.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
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
    except PluginError as exc:
        logger.error("%s", exc)
        raise SystemExit(_UNUSABLE) from exc
    finally:
        listener.stop()


def _loop_factory(config: Config) -> Any:
    if config.strategy_info.patches or config.loop == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None  # `auto`; for `uvloop` the parent has checked that it is installed
    return uvloop.new_event_loop

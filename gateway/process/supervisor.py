"""The parent process: starts children, restarts and replaces them.

It opens nothing but its sockets, and what a request of the API needs. Children
are new Python processes and not forks of a process with loops, clients or threads, so each loads
its code again and gevent can patch before any import.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine

from gateway.background import Tasks, happens
from gateway.backoff import Backoff
from gateway.clock import monotonic, time
from gateway.config.cross_checks import problems
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process.child_handle import ChildHandle
from gateway.process.counters import Growth, Totals, add_up
from gateway.process.service_manager import ServiceManager

log = logging.getLogger(__name__)

#: The settings of its sockets, which change only with a restart.
_BOUND = ("host", "port", "uds", "admin_host", "admin_port")
BACKOFF = (0.1, 5.0)  # seconds before a dead child is started again: the first, the longest


class Supervisor:
    """Keeps ``config.processes`` children serving on `sockets`.

    `load` reads the configuration again at SIGHUP. `manager` is told when a reload begins and ends,
    and that the gateway is about to end.
    """

    def __init__(
        self,
        config: Config,
        sockets: list[socket.socket],
        load: Callable[[], Config],
        manager: ServiceManager,
    ):
        self.config = config
        self._sockets = sockets
        self._load = load
        self._manager = manager
        self._keepers = Tasks()
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._reload_waits = False
        #: The living children, and what the dead ones have counted.
        self.children: list[ChildHandle] = []
        self.gone = Totals()
        self._ended: list[Growth] = []
        #: How many children have ended unexpectedly.
        self.restarts = 0
        self.reload_failed = False  # the last one, so the configuration of before is served
        self.started = time()  # epoch

    async def start(self) -> None:
        """Start the children, and react to signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._keep(self._reload()))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        _raise_file_limit()
        async with self._reloading:
            for _ in range(self.config.processes):
                self._keep(self._keep_one(await self._start(self.config)))

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; a second one kills the children immediately."""
        await self._stopping.wait()
        self._manager.notify("STOPPING=1", "STATUS=draining")
        for child in self.children:
            child.end()
        # The children close them as well. From now on connections are refused, so no request can be
        # lost in the kernel's queue. If a service manager has passed them, it keeps them open, and
        # connections wait for the next start.
        for listener in self._sockets:
            listener.close()
        await self._keepers.stop(None)
        log.info("stopped")

    def totals(self) -> Totals:
        """Add up the counters of all children, the dead ones included."""
        return add_up([self.gone, *(child.counters.totals() for child in self.children)])

    def grown(self) -> list[Growth]:
        """Return what children have counted since the last call, those that ended included."""
        ended, self._ended = self._ended, []
        return [*ended, *(each for child in self.children for each in child.counters.grown())]

    @property
    def draining(self) -> bool:
        return self._stopping.is_set()

    def _stop(self) -> None:
        if self._stopping.is_set():
            log.warning("got a second signal to stop: killing all children")
            for child in self.children:
                child.signal(signal.SIGKILL)
        self._stopping.set()

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        # If it raises, the loop logs the error.
        self._keepers.run(work, asyncio.Task.result)

    async def _keep_one(self, child: ChildHandle | None = None) -> None:
        """Start a child, and another whenever it ends unexpectedly."""
        backoff = Backoff(*BACKOFF)
        while not self._stopping.is_set():
            if child is None:
                async with self._reloading:  # a reload may have started another in its place
                    if self._enough():
                        return
                    child = await self._start(self.config)
                if child is None:
                    await happens(self._stopping, backoff.next())
                    continue
            code = await child.wait()
            lived = monotonic() - child.started
            self.children.remove(child)
            self.gone = add_up([self.gone, child.counters.totals(alive=False)])
            self._ended += child.counters.grown()
            child.close()
            if self._stopping.is_set() or child.retired:
                return
            if lived > BACKOFF[1]:
                backoff.reset()
            self.restarts += 1
            pause = backoff.next()
            log.error(
                "child %d ended with exit code %d; starting another in %.1f s",
                child.pid,
                code,
                pause,
            )
            child = None
            await happens(self._stopping, pause)

    def _enough(self) -> bool:
        return sum(not child.retired for child in self.children) >= self.config.processes

    async def _start(self, config: Config) -> ChildHandle | None:
        if self._stopping.is_set():
            return None
        try:
            child = ChildHandle(config, self._sockets)
            await child.start()
        # Where processes, threads or descriptors are used up, the errors are of many kinds; the
        # next attempt may succeed.
        except Exception as exc:  # noqa: BLE001
            log.error("cannot start a child: %s", exc)
            return None
        self.children.append(child)
        if self._stopping.is_set():
            child.end()
        return child

    async def _reload(self) -> None:
        if self._reload_waits:
            return  # what has not begun yet will read the same
        self._reload_waits = True
        async with self._reloading:
            self._reload_waits = False
            if self._stopping.is_set():
                return
            self._manager.reloading()
            self.reload_failed = not await self._replace()
            self._manager.notify("READY=1")

    async def _replace(self) -> bool:
        """Replace all children when as many new ones are ready; otherwise nothing changes: False.

        Until then all old ones serve. If they were replaced one by one, a configuration that fails
        later would leave children with two different configurations.
        """
        try:
            config = self._load()
        except ConfigError as exc:
            for problem in exc.problems:
                log.error("not reloaded: %s", problem)
            return False
        except Exception:  # as after an upgrade, whose files this process may not understand
            log.exception("not reloaded: the configuration cannot be loaded by this version")
            return False
        bound = {name: getattr(self.config, name) for name in _BOUND}
        for name, value in bound.items():
            if getattr(config, name) != value:
                log.warning("%s stays %s: it changes only with a restart", name, value)
        names_set = (
            config.model_fields_set - bound.keys() | self.config.model_fields_set & bound.keys()
        )
        config = config.model_copy(update=bound)
        config.model_fields_set.intersection_update(names_set)
        if "routes" in self.config.model_fields_set - config.model_fields_set:
            # As of a file that is being written: each sender would be answered with a 404.
            log.error(
                "not reloaded: the file has no [[routes]] any more; start anew if it is meant"
            )
            return False
        if found := problems(config):
            for problem in found:
                log.error("not reloaded: %s", problem)
            return False
        # Without those that an earlier reload has replaced and that still drain.
        old = [child for child in self.children if not child.retired]
        log.info("reloading: replacing %d children", len(old))
        new: list[ChildHandle] = []
        error = await self._start_all(config, new)
        if self._stopping.is_set():
            return False
        if error:
            log.error("not reloaded: %s; the old children stay", error)
        else:
            self.config = config
            log.info("reloaded")
        for child in new if error else old:
            child.retired = True
            child.end()
        return not error

    async def _start_all(self, config: Config, new: list[ChildHandle]) -> str:
        """Start the children of a configuration, one after the other, beside the old ones.

        Stops at the first error and returns it; empty: there was none. The children that were
        started are added to `new`.
        """
        for _ in range(config.processes):
            child = await self._start(config)
            if child is None:
                return "a new child cannot be started"
            new.append(child)
            self._keep(self._keep_one(child))
            if not await child.ready():
                return f"the new child {child.pid} is not ready"
        ended = [child.pid for child in new if child not in self.children]
        return f"the new child {ended[0]} has ended" if ended else ""


def _raise_file_limit() -> None:
    """Raise the limit on open files to the hard limit, as each connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

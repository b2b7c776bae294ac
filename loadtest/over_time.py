"""What servers use while they are loaded: CPU, memory and connections, every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic
from typing import Any, Self, TypeVar

from loadtest.plot import Plot, single
from loadtest.stack import Measurable
from loadtest.summary import Row, case_of, figure

_T = TypeVar("_T")


def beside(work: Callable[[], _T]) -> Future[_T]:
    """Run `work` in a thread of its own; the future has what it returns or raises.

    A daemon thread, as Python waits at its end for all others: one of a ThreadPoolExecutor is
    never told to end if the user interrupts the program just while it is started.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:  # noqa: BLE001  # whoever waits for the result gets it
            future.set_exception(exc)

    Thread(target=run, daemon=True).start()
    return future


class Sampling:
    """Has `sample` run in a thread while this context is entered, until `ended` is set.

    What it raises is raised at the end of the context, where nothing else is.
    """

    def __init__(self) -> None:
        self.ended = Event()

    def sample(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.sampling = beside(self.sample)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ended.set()
        error = self.sampling.exception()
        if error is not None and exc_info[0] is None:
            raise error


class OverTime(Sampling):
    """Takes a sample every `every` seconds.

    `connections`, if given, counts those that are open, by the kind of server. At its end what was
    found is in `series`: lists of equal length, of `seconds` since the beginning, of `cpu_percent`
    (of a core, since the sample before) and of `rss_mb` for each server, and of `connections`.
    """

    def __init__(
        self,
        servers: Mapping[str, Measurable],
        every: float,
        connections: Callable[[], Mapping[str, int]] | None = None,
    ):
        super().__init__()
        self._servers, self._every, self._connections = servers, every, connections
        self.series: dict[str, Any] = {
            "seconds": [],
            **{kind: {name: [] for name in servers} for kind in ("cpu_percent", "rss_mb")},
            "connections": {},
        }

    def sample(self) -> None:
        series, began = self.series, monotonic()
        before, since = self._cpu(), began
        # A sample that is due when the load ends would be of servers that are being left.
        while not self.ended.wait(since + self._every - monotonic()):
            cpu, now = self._cpu(), monotonic()
            connections = self._connections() if self._connections else {}
            for name, server in self._servers.items():
                percent = 100 * (cpu[name] - before[name]) / (now - since)
                series["cpu_percent"][name].append(round(percent, 1))
                series["rss_mb"][name].append(round(server.rss_bytes() / 2**20, 1))
            for name, number in connections.items():
                series["connections"].setdefault(name, []).append(number)
            series["seconds"].append(round(now - began, 1))
            before, since = cpu, now

    def _cpu(self) -> dict[str, float]:
        return {name: server.cpu_seconds() for name, server in self._servers.items()}


#: The plots of `plots`: a file's name, the title, the y axis, and where a row's series has it.
WATCHED = (
    ("gateway-cpu", "Gateway CPU over time", "% of a core", ("cpu_percent", "gateway")),
    ("worker-cpu", "Worker CPU over time", "% of a core", ("cpu_percent", "worker")),
    ("gateway-memory", "Gateway memory over time", "MB", ("rss_mb", "gateway")),
    ("worker-memory", "Worker memory over time", "MB", ("rss_mb", "worker")),
    ("amqp", "Connections to RabbitMQ over time", "connections", ("connections", "broker")),
    ("redis", "Connections to Redis over time", "connections", ("connections", "redis")),
)


def plots(rows: list[Row], case: str) -> list[Plot]:
    """Return a plot for each kind of figure, with a line for each strategy's first row in `case`.

    A row has its `OverTime.series` as ``over_time``.
    """
    first: dict[str, Row] = {}
    for row in rows:
        if case_of(row) == case and figure(row, ("over_time", "seconds")):
            first.setdefault(row["strategy"], row["over_time"])
    return [
        Plot(name, f"{title}, {case}", "seconds", y, lines, linear=True)
        for name, title, y, path in WATCHED
        if (
            lines := {
                who: single(series["seconds"], ys)
                for who, series in first.items()
                if (ys := figure(series, path))
            }
        )
    ]

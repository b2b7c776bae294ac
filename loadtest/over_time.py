"""What servers use while they are loaded: CPU, memory and connections, every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from time import monotonic
from typing import Any, Self

from loadtest.beside import beside
from loadtest.plot import Plot, Point
from loadtest.stack import Measurable
from loadtest.summary import Row, case_of, figure


class OverTime:
    """Takes a sample every `every` seconds, in a thread, while this context is entered.

    `connections`, if given, counts those that are open, by the kind of server. It and the
    `servers` may raise; the end of the context raises that. At its end what was found is in
    `series`: lists of equal length, of `seconds` since the beginning, of `cpu_percent` (of a core,
    since the sample before) and of `rss_mb` for each server, and of `connections`.
    """

    def __init__(
        self,
        servers: Mapping[str, Measurable],
        every: float,
        connections: Callable[[], Mapping[str, int]] | None = None,
    ):
        self._servers, self._every, self._connections = servers, every, connections
        self._ended = Event()
        self.series: dict[str, Any] = {
            "seconds": [],
            **{kind: {name: [] for name in servers} for kind in ("cpu_percent", "rss_mb")},
            "connections": {},
        }

    def __enter__(self) -> Self:
        self._sampling = beside(self._sample)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        error = self._sampling.exception()
        if error is not None and exc_info[0] is None:
            raise error

    def _sample(self) -> None:
        series, began = self.series, monotonic()
        before, since = self._cpu(), began
        # A sample that is due when the load ends would be of servers that are being left.
        while not self._ended.wait(since + self._every - monotonic()):
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
                who: _points(series, path) for who, series in first.items() if figure(series, path)
            }
        )
    ]


def _points(series: Row, path: tuple[str, str]) -> list[Point]:
    return [(x, y, y, y) for x, y in zip(series["seconds"], figure(series, path), strict=True)]

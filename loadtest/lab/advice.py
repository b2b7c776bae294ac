"""What to do by the rows of an investigation: a sentence, empty where nothing follows; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadtest.summary import Row, Summary, summarize
from loadtest.targets import number, ratios

#: Pools, from the one that asks least of the tasks' code: the last ones patch the standard library.
POOLS = ("prefork", "threads", "gevent", "eventlet")
#: What is as fast as the fastest, and as small as the smallest. The next concurrency takes about
#: half of the time; what a task costs beside its sleep is less than this, as the sleep is short.
AS_FAST, AS_SMALL = 1.15, 1.1
#: A rate within this share of another one is as good.
NEAR = 0.9
#: Less is no difference between loops, as repeats differ by as much.
DIFFERENT = 1.2
#: A part of the gateway, and a library that is not maintained any more.
_NOT_ADVISED = ("frames", "librabbitmq")


def pool(rows: Sequence[Row]) -> str:
    """Say which worker pool and concurrency to choose.

    Of those as fast as the fastest, and of these of those as small as the smallest, it is the one
    of the least concurrency, and the one whose pool asks least of the code.
    """
    clean = [s for s in summarize(rows) if s.clean]
    if not clean:
        return "No setting ran without an error, so this run recommends none."
    time, memory = ("total_seconds",), ("shared_once_mb",)
    near = _least(_least(clean, AS_FAST, *time), AS_SMALL, *memory)
    chosen = min(near, key=lambda s: (int(s.case), POOLS.index(s.strategy)))
    slowest = max(clean, key=lambda s: s.median(*time))
    large = max(clean, key=lambda s: s.median(*memory))
    return (
        f"For tasks that wait for other services, start the worker with -P {chosen.strategy} and a "
        f"concurrency of at least as many tasks as wait at once: with -c {chosen.case}, "
        f"{chosen.median('requests'):.0f} tasks took {chosen.median(*time):.1f} s in "
        f"{chosen.median(*memory):.0f} MB of memory, shared pages counted once; "
        f"{slowest.strategy} at {slowest.case} took {slowest.median(*time):.1f} s, "
        f"{large.strategy} at {large.case} took {large.median(*memory):.0f} MB."
    )


def _least(summaries: Sequence[Summary], times: float, *path: str) -> list[Summary]:
    least = min(s.median(*path) for s in summaries)
    return [s for s in summaries if s.median(*path) <= times * least]


def driver(rows: Sequence[Row]) -> str:
    """Say what to consume with: the fastest library's smallest setting that is as good."""
    libraries = [s for s in summarize(rows) if s.strategy not in _NOT_ADVISED]
    if not libraries:
        return ""
    best = max(libraries, key=lambda s: s.median("rps"))
    same = [s for s in libraries if s.strategy == best.strategy]
    near = [s for s in same if s.median("rps") >= NEAR * best.median("rps")]
    chosen = min(near, key=lambda s: (s.rows[0]["prefetch"], s.connections))
    alone = [s.median("rps") for s in same if s.rows[0]["prefetch"] == 1]
    prefetch = chosen.rows[0]["prefetch"]
    how = (
        "acknowledge each message"
        if prefetch == 1
        else f"acknowledge {prefetch} messages at once, with a prefetch of {prefetch}"
    )
    text = (
        f"Consume with {best.strategy} over {chosen.connections} "
        f"connection{'s' * (chosen.connections != 1)} and {how}: {chosen.median('rps'):,.0f} "
        f"messages/s at {chosen.median('cpu_us_per_request', 'worker'):,.0f} us of CPU each"
    )
    if prefetch > 1 and alone:
        text += f", {number(chosen.median('rps') / max(alone))} times the best with prefetch 1"
    return f"{text}."


def transport(rows: Sequence[Row]) -> str:
    """Say what to send with between processes of one machine, and what a broker costs."""
    rates = {(s.strategy, s.case): s.median("rps") for s in summarize(rows)}
    local = {
        name: rate
        for (name, form), rate in rates.items()
        if form in ("bytes", "pickles") and not name.startswith(("Redis", "RabbitMQ"))
    }
    queue = rates.get(("multiprocessing.Queue", "pickles"))
    durable = rates.get(("RabbitMQ, confirmed", "bytes"))
    if not (local and queue and durable):
        return ""
    floor = max(local, key=lambda name: local[name])
    return (
        f"Between processes of one machine, send bytes and many messages at once: {floor} moves "
        f"{local[floor]:,.0f} messages a second, {local[floor] / queue:.0f} times as many as "
        "multiprocessing.Queue; pay for a broker only where a message has to outlive the "
        f"processes: RabbitMQ, persistent and confirmed, moves {durable:,.0f}, "
        f"{local[floor] / durable:,.0f} times fewer."
    )


def loop(rows: Sequence[Row]) -> str:
    """Say how to wait for many, and where uvloop lowers a server's CPU time."""
    ways = [s for s in summarize(rows) if s.values("checker", "ms")]
    one = [s for s in ways if s.strategy == "one thread"]
    servers = dict.fromkeys(row["strategy"] for row in rows if "server" in row)
    gains = {
        name: median(found)
        for name in servers
        if (found := ratios(rows, ("server", "cpu_us"), (name, "asyncio"), (name, "uvloop")))
    }
    # A server that has used less than a tick of the clock shows nothing.
    shown = {name: f"{name}: {1 - 1 / gain:.0%}" for name, gain in gains.items() if gain > 0}
    if not (one and shown):
        return ""
    best = min(ways, key=lambda s: s.median("checker", "ms"))
    helped = "; ".join(text for name, text in shown.items() if gains[name] >= DIFFERENT)
    others = "; ".join(text for name, text in shown.items() if gains[name] < DIFFERENT)
    uvloop = f"take uvloop where it lowers a server's CPU time ({helped})"
    if not helped:
        uvloop = "do without uvloop"
    elif others:
        uvloop += f", and do not expect much of it elsewhere ({others})"
    on = "" if best.case == "no loop" else f" on {best.case}"
    return (
        f"To wait for many, use {best.strategy}{on}: {best.median('checker', 'ms') / 1e3:.2f} s "
        f"and {best.median('rss_mb', 'checker'):.0f} MB where one thread takes "
        f"{one[0].median('checker', 'ms') / 1e3:.2f} s; and {uvloop}."
    )

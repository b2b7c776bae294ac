"""What was said of transports, and whether the rows show it; what to do; no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from loadtest.lab.claims import Claim
from loadtest.lab.transport_cases import (
    BUFFERED,
    BYTES,
    CASES,
    CONFIRMED,
    EACH,
    PICKLES,
    PIPE,
    PUSH,
    QUEUE,
    RATE,
    SERVERS,
)
from loadtest.summary import Row, summarize
from loadtest.targets import ratios

#: What was measured then, messages a second.
THEN = {(QUEUE, PICKLES): 79_781, (PUSH, BYTES): 1_699_180}
#: Two factors that differ by less than this one are about the same.
_ABOUT = 2.0
#: So many times slower is far.
_FAR = 10

_BROKERS = {case.transport for case in CASES if case.module in SERVERS}
_LOCAL = {case.transport for case in CASES} - _BROKERS


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Decide what was said of transports by `rows`."""
    ours = _rates(rows)
    queue, zeromq, pickled = (
        ours.get(each) for each in ((QUEUE, PICKLES), (PUSH, BYTES), (PUSH, PICKLES))
    )
    factors = ratios(rows, RATE, (PUSH, BYTES), (QUEUE, PICKLES))
    faster = Claim("ZeroMQ over ipc is faster than multiprocessing.Queue", None)
    times = Claim(f"It is {_then():.0f} times as fast (half to twice that)", None)
    pickling = Claim("The difference is that the queue pickles and ZeroMQ sends bytes", None)
    if queue and zeromq:
        factor = median(factors)
        shown = f"{PUSH}, {BYTES}: {zeromq:,.0f}/s; {QUEUE}: {queue:,.0f}/s"
        faster = replace(faster, holds=min(factors) > 1, shown=shown)
        about = _then() / _ABOUT <= factor <= _then() * _ABOUT
        shown = f"{factor:.1f} times ({min(factors):.1f}-{max(factors):.1f})"
        times = replace(times, holds=about, shown=shown)
        if pickled:
            # As factors multiply: more than half of the way is more than the root.
            by_pickles = zeromq / pickled
            pickling = replace(
                pickling,
                holds=by_pickles**2 >= zeromq / queue,
                shown=f"{PUSH}, {PICKLES}: {pickled:,.0f}/s, which is {by_pickles:.1f} of the "
                f"{zeromq / queue:.1f} times; the other {zeromq / queue / by_pickles:.1f} are the "
                "queue's own",
            )
    return [faster, times, pickling, _far(ours)]


def _far(ours: Mapping[tuple[str, str], float]) -> Claim:
    text = f"A broker is far from the floor: at least {_FAR} times slower"
    (floor, best), (broker, rate) = _fastest(ours, _LOCAL), _fastest(ours, _BROKERS)
    if not (best and rate):
        return Claim(text, None)
    shown = f"{floor}: {best:,.0f}/s; {broker}: {rate:,.0f}/s, {best / rate:.1f} times slower"
    return Claim(text, best >= _FAR * rate, shown)


def advice(rows: Sequence[Row]) -> str:
    """Say what to do, in a sentence; empty where what decides it was not measured."""
    ours = _rates(rows)
    floor, best = _fastest(ours, _LOCAL)
    queue, durable = ours.get((QUEUE, PICKLES)), ours.get((CONFIRMED, BYTES))
    if not (best and queue and durable):
        return ""
    return (
        f"Between processes of one machine, send bytes and many messages at once: {floor} moves "
        f"{best:,.0f} messages a second, {best / queue:.0f} times as many as {QUEUE}; pay for a "
        f"broker only where a message has to outlive the processes: RabbitMQ, persistent and "
        f"confirmed, moves {durable:,.0f}, {best / durable:,.0f} times fewer."
    )


def beside(rows: Sequence[Row]) -> list[list[str]]:
    """Lay out the original's figures beside ours."""
    ours = _rates(rows)
    lines = [["messages per second", "then", "here", "here / then"]]
    for (transport, form), then in THEN.items():
        here = ours.get((transport, form))
        figures = [f"{here:,.0f}", f"{here / then:.2f}"] if here else ["-", "-"]
        lines.append([f"{transport}, {form}", f"{then:,}", *figures])
    factors = ratios(rows, RATE, (PUSH, BYTES), (QUEUE, PICKLES))
    here = median(factors) if factors else None
    figures = [f"{here:.1f} times", f"{here / _then():.2f}"] if here else ["-", "-"]
    return [*lines, ["ZeroMQ / queue", f"{_then():.1f} times", *figures]]


def why(rows: Sequence[Row]) -> list[str]:
    """Say what differs from the original in order and size, and what of it the rows explain."""
    ours = _rates(rows)
    needed = [*THEN, (BUFFERED, BYTES), (EACH, BYTES), (PIPE, BYTES), (PIPE, PICKLES)]
    if not all(ours.get(each) for each in needed):
        return []
    queue, zeromq, buffered, each, plain, pickled = (ours[key] for key in needed)
    order = "the same" if zeromq > queue else "the other way round"
    return [
        f"The order is {order} as then; the distance is {zeromq / queue:.1f} times here and "
        f"{_then():.1f} then, on another machine with older versions of Python and ZeroMQ. Why "
        "there is a distance: a write for each message makes a UNIX socket "
        f"{buffered / each:.1f} times slower than writes of 64 KiB, and ZeroMQ's own thread joins "
        f"messages, too; pickles make a pipe {plain / pickled:.1f} times slower. The queue has all "
        "of that for each message: a pickle, a lock, a thread that takes turns with the sender's, "
        "a write and two reads."
    ]


def _then() -> float:
    return THEN[PUSH, BYTES] / THEN[QUEUE, PICKLES]


def _rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the median rate of each transport and form."""
    return {(s.strategy, s.case): s.median(*RATE) for s in summarize(rows)}


def _fastest(
    ours: Mapping[tuple[str, str], float], transports: Collection[str]
) -> tuple[str, float]:
    """Return the fastest of `transports` with one receiver, and its rate; none: an empty name."""
    found = [
        (rate, name)
        for (name, form), rate in ours.items()
        if name in transports and form in (BYTES, PICKLES)
    ]
    rate, name = max(found, default=(0.0, ""))
    return name, rate

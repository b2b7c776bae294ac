"""What was measured in the first investigation of consumers, beside the rows of a run; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from loadtest.lab.consumers.settings import (
    ACKS,
    CPU,
    LOOP,
    RATE,
    THREADS,
    best,
    case,
    rate,
    several,
    single,
)
from loadtest.summary import Row, Summary, summarize
from loadtest.targets import number


@dataclass(frozen=True)
class Original:
    """What was measured then: messages/s, user and system time in seconds, calls of basic_ack and
    milliseconds in them; None: not known."""

    driver: str
    connections: int
    prefetch: int
    rate: int
    user: float | None = None
    system: float | None = None
    acks: int | None = None
    ack_ms: int | None = None


#: In the order of their prefetch.
ORIGINALS = [
    Original("librabbitmq", 2, 1, 38_461, 0.08),
    Original("py-amqp", 2, 1, 9_090, 1.02, 0.37, 10_000, 218),
    Original("pika", 32, 1, 6_250, 1.39, 0.09, 10_000, 351),
    Original("py-amqp", 2, 4, 7_936),
    Original("pika", 32, 4, 11_904),
    Original("py-amqp", 2, 8, 8_547),
    Original("pika", 32, 8, 13_333),
    Original("py-amqp", 2, 16, 8_849),
    Original("pika", 32, 16, 14_492),
    Original("py-amqp", 2, 32, 9_259, ack_ms=15),
    Original("pika", 32, 32, 15_151, acks=328, ack_ms=14),
    Original("py-amqp", 2, 64, 9_615),
    Original("pika", 32, 64, 14_492),
]


def beside(rows: Sequence[Row]) -> list[list[str]]:
    """Return a table of the original's figures with ours of the same settings."""
    ours = {(s.strategy, s.case): s for s in summarize(rows)}
    lines = [
        [
            "setting", "messages/s then", "now", "now / then", "user + system, s, then", "now",
            "basic_ack then", "now",
        ]
    ]  # fmt: skip
    for then in ORIGINALS:
        now = ours.get((then.driver, case(then.connections, then.prefetch)))
        lines.append(
            [
                f"{then.driver}, {case(then.connections, then.prefetch)}",
                f"{then.rate:,}",
                f"{now.median(*RATE):,.0f}" if now else "-",
                number(now.median(*RATE) / then.rate) if now else "-",
                " + ".join(f"{t:.2f}" for t in (then.user, then.system) if t is not None) or "-",
                f"{now.median('user_ms') / 1e3:.2f} + {now.median('system_ms') / 1e3:.2f}"
                if now
                else "-",
                _acks(then.acks, then.ack_ms),
                _acks(now.median("acks"), now.median(*ACKS)) if now else "-",
            ]
        )
    return lines


def order(rows: Sequence[Row]) -> str:
    """Say which driver was faster then and which one is now, and why."""
    ours = {(s.strategy, s.case): rate(s) for s in summarize(rows)}
    pairs = []
    for prefetch, group in groupby(ORIGINALS, key=lambda then: then.prefetch):
        both = [
            (then.driver, then.rate, ours[then.driver, where])
            for then in group
            if (then.driver, where := case(then.connections, then.prefetch)) in ours
        ]
        if len(both) > 1:
            before = _ranked({name: then for name, then, _ in both})
            pairs.append((before, _ranked({name: now for name, _, now in both}), prefetch))
    found = []
    for (before, now), same in groupby(pairs, key=lambda pair: pair[:2]):
        prefetches = ", ".join(str(prefetch) for *_, prefetch in same)
        here = "as here" if before == now else f"here {now}"
        found.append(f"prefetch {prefetches}: then {before}, {here}")
    if not found:
        return ""
    return f"Order at the original's settings: {'; '.join(found)}. {why(rows)}".strip()


def why(rows: Sequence[Row]) -> str:
    """Explain the order of threads and event loop by the CPU time that they need."""
    found = []
    for what, wanted in (("With prefetch 1", single), ("With more", several)):
        both = [s for name in (THREADS, LOOP) if (s := best(rows, name, wanted))]
        if len(both) < 2:
            continue
        slower, faster = sorted(both, key=rate)
        costs = ", ".join(
            f"{s.strategy} {s.median(*CPU):,.0f} us, busy {_busy(s):.0%} of a core" for s in both
        )
        reason = (
            "needs less CPU time for a message"
            if faster.median(*CPU) < slower.median(*CPU)
            else "needs more CPU time for a message, but waits less"
        )
        found.append(f"{what}, the faster one, {faster.strategy}, {reason} ({costs}).")
    return " ".join(found)


def _busy(summary: Summary) -> float:
    """Return the share of a core that a consumer uses."""
    return rate(summary) * summary.median(*CPU) / 1e6


def _acks(calls: float | None, ms: float | None) -> str:
    known = [(calls, "calls"), (ms, "ms")]
    return ", ".join(f"{value:,.0f} {unit}" for value, unit in known if value is not None) or "-"


def _ranked(rates: Mapping[str, float]) -> str:
    return " before ".join(sorted(rates, key=lambda name: -rates[name]))

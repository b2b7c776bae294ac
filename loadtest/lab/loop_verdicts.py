"""What was said of ways to wait and of loops, and whether the rows show it; what to do; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadtest.lab.claims import Claim
from loadtest.lab.loop_ways import (
    AIOHTTP,
    ASYNCIO,
    CHECKER,
    INTERFACES,
    LOOPS,
    MS,
    NO_LOOP,
    ONE,
    SERVER,
    THREADS,
    UVLOOP,
    WAYS,
    echo,
)
from loadtest.summary import Row, summarize
from loadtest.targets import ratios

#: URLs a second: 31 in 5.7 s, 365 in 7.86 s and in 4.44 s.
THEN = {
    (THREADS, NO_LOOP): 31 / 5.7,
    (AIOHTTP, ASYNCIO): 365 / 7.86,
    (AIOHTTP, UVLOOP): 365 / 4.44,
}
#: Less is no difference, as repeats differ by as much.
_DIFFERENT = 1.2


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Decide what was said of ways and loops by `rows`."""
    return [_many(rows), _saved(rows), _differ(rows)]


def _many(rows: Sequence[Row]) -> Claim:
    text = (
        "Threads, processes and asyncio wait for many URLs in less than half of one thread's time"
    )
    others = [key for key in WAYS if key != (ONE, NO_LOOP)]
    factors = {key: ratios(rows, MS, (ONE, NO_LOOP), key) for key in others}
    if not all(factors.values()):
        return Claim(text, None)
    shown = "; ".join(
        f"{_called(key)}: {median(found):.1f} times" for key, found in factors.items()
    )
    return Claim(text, min(map(min, factors.values())) > 2, f"faster than one thread: {shown}")


def _saved(rows: Sequence[Row]) -> Claim:
    before, after = (THEN[AIOHTTP, loop] for loop in LOOPS)
    then = 1 - before / after
    text = f"uvloop saves a checker on asyncio {then:.0%} of its time (at least half of that)"
    shares = ratios(rows, MS, (AIOHTTP, UVLOOP), (AIOHTTP, ASYNCIO))
    if not shares:
        return Claim(text, None)
    saved = sorted(1 - share for share in shares)
    shown = f"{median(saved):.0%} saved by {AIOHTTP} ({saved[0]:.0%} to {saved[-1]:.0%})"
    return Claim(text, median(saved) >= then / 2, shown)


def _differ(rows: Sequence[Row]) -> Claim:
    text = (
        "uvloop only helps where the library uses it well: sockets, streams, protocols and "
        "transports differ"
    )
    gains = _gains(rows)
    by_interface = {name: gains[echo(name)] for name in INTERFACES if echo(name) in gains}
    if len(by_interface) < len(INTERFACES):
        return Claim(text, None)
    least, most = (f(by_interface.values(), key=median) for f in (min, max))
    # The repeats of the one are all above those of the other.
    apart = max(least) < min(most) and median(most) >= _DIFFERENT * median(least)
    shown = "; ".join(f"{name} {median(found):.2f}" for name, found in gains.items())
    return Claim(
        text,
        apart and median(most) >= _DIFFERENT,
        f"the server's CPU on asyncio / on uvloop: {shown}",
    )


def advice(rows: Sequence[Row]) -> str:
    """Say what to do, in a sentence; empty where what decides it was not measured."""
    checkers = {(s.strategy, s.case): s for s in summarize(rows) if (s.strategy, s.case) in WAYS}
    # A server that has used less than a tick of the clock shows nothing.
    gains = {name: gain for name, found in _gains(rows).items() if (gain := median(found)) > 0}
    if ONE not in {way for way, _ in checkers} or not gains:
        return ""
    seconds = {key: summary.median(*MS) / 1e3 for key, summary in checkers.items()}
    best, *slower = sorted(seconds, key=lambda key: seconds[key])
    near = [key for key in slower if seconds[key] <= _DIFFERENT * seconds[best]]
    as_fast = "; ".join(f"{_called(key)}, {seconds[key]:.2f} s" for key in near)
    saved = {name: f"{name}: {1 - 1 / gain:.0%}" for name, gain in gains.items()}
    helped: list[str] = []
    others: list[str] = []
    for name, gain in gains.items():
        (helped if gain >= _DIFFERENT else others).append(saved[name])
    uvloop = f"take uvloop where it lowers a server's CPU time ({'; '.join(helped)})"
    if not helped:
        uvloop = "do without uvloop"
    elif others:
        uvloop += f", and do not expect much of it elsewhere ({'; '.join(others)})"
    return (
        f"To wait for many, use {_called(best)}: {seconds[best]:.2f} s and "
        f"{checkers[best].median('rss_mb', 'checker'):.0f} MB where one thread takes "
        f"{seconds[ONE, NO_LOOP]:.2f} s{f' (about as fast: {as_fast})' if near else ''}; and "
        f"{uvloop}."
    )


def beside(rows: Sequence[Row]) -> list[list[str]]:
    """Lay out the original's figures beside ours."""
    ours = _rates(rows)
    lines = [["URLs per second", "then", "here", "here / then"]]
    for key, then in THEN.items():
        here = ours.get(key)
        figures = [f"{here:,.0f}", f"{here / then:.0f}"] if here else ["-", "-"]
        lines.append([_called(key), f"{then:.1f}", *figures])
    then = THEN[AIOHTTP, UVLOOP] / THEN[AIOHTTP, ASYNCIO]
    found = ratios(rows, ("rps",), (AIOHTTP, UVLOOP), (AIOHTTP, ASYNCIO))
    figures = [f"{median(found):.2f}", f"{median(found) / then:.2f}"] if found else ["-", "-"]
    return [*lines, ["uvloop / asyncio", f"{then:.2f}", *figures]]


def why(rows: Sequence[Row]) -> list[str]:
    """Say what differs from the original in order, and what the rows say of the reason."""
    ours = _rates(rows)
    if not all(ours.get(key) for key in THEN):
        return []
    orders = [sorted(THEN, key=lambda key: -rates[key]) for rates in (THEN, ours)]
    then, here = (", ".join(map(_called, order)) for order in orders)
    order = (
        f"is the same as then, from the fastest: {here}"
        if orders[0] == orders[1]
        else (f"was, from the fastest: {then}; here it is: {here}")
    )
    cpu, ms = (
        {s.case: s.median(*path) for s in summarize(rows) if s.strategy == AIOHTTP}
        for path in (CHECKER, MS)
    )
    number = next(row["requests"] for row in rows if row["strategy"] == AIOHTTP)
    busy = cpu[ASYNCIO] * number / (ms[ASYNCIO] * 1e3)
    return [
        f"The order {order}. Then the URLs were remote, 31 for the threads and 365 for asyncio: "
        "what a remote site takes no loop can save, and it differs from run to run. Here all URLs "
        "are of one server on the same machine, which is why each way is faster. The checker on "
        f"asyncio used CPU for {busy:.0%} of its time, {cpu[ASYNCIO]:,.0f} us a URL, and on uvloop "
        f"{cpu[UVLOOP]:,.0f} us: more than that difference uvloop cannot save."
    ]


def _called(key: tuple[str, str]) -> str:
    way, loop = key
    return way if loop == NO_LOOP else f"{way} on {loop}"


def _rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the median rate of each way to check URLs."""
    found = {(s.strategy, s.case): s for s in summarize(rows)}
    return {key: summary.median("rps") for key, summary in found.items() if key in WAYS}


def _gains(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return by what factor uvloop lowers each server's CPU, repeat by repeat."""
    names = dict.fromkeys(row["strategy"] for row in rows if "server" in row)
    gains = {name: ratios(rows, SERVER, (name, ASYNCIO), (name, UVLOOP)) for name in names}
    return {name: found for name, found in gains.items() if found}

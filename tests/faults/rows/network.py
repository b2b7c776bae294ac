"""Rows 9, 10 and 38: what a network may do."""

from __future__ import annotations

import time
from time import monotonic

from tests.faults.lane import Lane
from tests.faults.proxy import Proxy
from tests.faults.rows.brokers import BOTH, expect_prompt, expect_unconfirmed
from tests.faults.servers import port_of
from tests.faults.trial import Trial, row

#: Seconds after which a silent broker must have been given up: the half second before it is asked,
#: `confirm_timeout`, and some more for the first message and for the next connection.
GIVEN_UP = 6
IN_FLIGHT = 200
SLOW = (1_000_000, 0.2)  # bit/s, seconds


def _proxied(trial: Trial) -> tuple[Proxy, str]:
    """Return a proxy in front of the broker, and the broker's URL by way of it."""
    port = port_of(trial.broker)
    proxy = Proxy(port)
    trial.at_exit(proxy.close)
    return proxy, trial.broker.url.replace(f":{port}/", f":{proxy.port}/")


@row(9, "packets dropped, connections reset", (503, 504), again=True)
def cut(trial: Trial) -> None:
    """Nothing passes for 34 s, neither gateways' nor workers'; then five resets."""
    proxy, url = _proxied(trial)
    trial.open(broker=url, targets=BOTH)
    with trial.load(), trial.fault():
        proxy.stall()
        stalled = monotonic()
        time.sleep(34)
        resumed = monotonic()
        proxy.resume()
        time.sleep(5)
        for _ in range(5):
            proxy.reset()
            time.sleep(1)
    for lane in trial.lanes:
        expect_prompt(lane, stalled + GIVEN_UP, resumed)
        expect_unconfirmed(lane)


@row(38, "broker connection silently dead", (503, 504), again=True)
def silent(trial: Trial) -> None:
    """The gateways' connections carry nothing any more, and nobody is told; new ones are well."""
    proxy, url = _proxied(trial)
    trial.open(broker=url, worker={"broker": trial.broker.url}, targets=BOTH)
    with trial.load(), trial.fault():
        proxy.silence()
        silenced = monotonic()
        trial.pause(15, short=8)
        ended = monotonic()
    for lane in trial.lanes:
        after = lane.tries(since=silenced + GIVEN_UP, until=ended)
        bad = [one for one in after if not one.good]
        lane.expect(bool(after) and not bad, f"{len(bad)} of {len(after)} after {GIVEN_UP} s")


@row(10, "slow link", (503, 504))
def slow(trial: Trial) -> None:
    """Ten times what the link between gateway and broker bears."""
    proxy, url = _proxied(trial)
    options, worker = ("--max-in-flight", str(IN_FLIGHT)), {"broker": trial.broker.url}
    trial.open(*options, broker=url, worker=worker, padding=10_000)
    most: dict[Lane, float] = dict.fromkeys(trial.lanes, 0)
    memory: dict[Lane, int] = dict.fromkeys(trial.lanes, 0)
    with trial.load(), trial.fault():
        proxy.slow(*SLOW)
        end = monotonic() + 20
        while monotonic() < end:
            for lane in trial.lanes:
                now = lane.remains()
                most[lane] = max(most[lane], now.in_flight)
                memory[lane] = max(memory[lane], now.memory)
            time.sleep(0.5)
        proxy.slow(0, 0)
    for lane in trial.lanes:
        lane.expect(most[lane] <= IN_FLIGHT, f"{most[lane]:g} requests in flight")
        lane.expect(lane.tries(503), "nobody was refused")
        lane.notes["peak_memory_mb_more"] = (memory[lane] - lane.before.memory) // 2**20

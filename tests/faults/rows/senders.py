"""Rows 27 and 31: senders that leave, and senders that repeat themselves."""

from __future__ import annotations

import asyncio
import socket
import struct

from gateway.stack.server import poll
from tests.faults.lane import Lane
from tests.faults.servers import port_of
from tests.faults.trial import ALL, AT_ONCE, Trial, row
from tests.simulation.records import Try
from tests.support.http_client import request

LEAVING = 40  # senders at once
ROUNDS, TIMES = 20, 100  # deliveries, and how often each is sent
GONE = "gateway_clients_gone_total"
_RESET = struct.pack("ii", 1, 0)


@row(27, "client gone in mid-wait", strategies=ALL)
def gone(trial: Trial) -> None:
    """Senders reset their connections while they wait."""
    trial.open()
    with trial.load(), trial.fault():
        trial.each(_leave)


def _leave(lane: Lane) -> None:
    blocking = lane.strategy == "blocking"  # which sees nothing but the task it waits for
    number = 5 if blocking else LEAVING
    before = lane.metric(GONE)
    names = [f"gone-{n}" for n in range(number)]
    connections = []
    for name in names:
        connection = socket.create_connection(("127.0.0.1", port_of(lane.gateway)))
        connection.sendall(request(name.encode(), "/echo?seconds=0.4"))
        connections.append(connection)
    if not blocking:
        met = poll(lambda: lane.metric("gateway_in_flight") >= number, 5)
        lane.expect(met, "they were not all under way at once")
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()
    sure = number if lane.strategy in AT_ONCE else number / 2
    ran = poll(lambda: len(lane.executed().intersection(names)) >= sure, 20)
    if not blocking:
        left = lane.metric(GONE) - before
        lane.expect(left >= number / 2, f"only {left:g} of {number} were seen to leave")
        lane.expect(ran, f"not executed: {sorted(set(names) - lane.executed())[:5]}")


@row(31, "one delivery 100 times at once", strategies=ALL)
def repeated(trial: Trial) -> None:
    """One delivery 100 times at once to four processes, 20 such deliveries."""
    trial.open("--processes=4")
    # All processes have served then, also those of `blocking`, which is warmed up one by one.
    for lane in trial.lanes:
        trial.client.run(_at_once(lane, f"{lane.queue}-first"))
    trial.warm()
    with trial.fault():
        for lane in trial.lanes:
            _repeat(trial, lane)


def _repeat(trial: Trial, lane: Lane) -> None:
    identities = [f"{lane.queue}-{number}" for number in range(ROUNDS)]
    for identity in identities:
        answers = trial.client.run(_at_once(lane, identity))
        told = {(one.status, one.body) for one in answers}
        lane.expect(len(told) == 1, f"{identity} got {sorted(map(str, told))[:3]}")
    trial.client.run(lane.sender.close())
    lane.expect(poll(lane.quiet, 10), "something is still under way")
    ran = [one.id for one in lane.executions() if one.id in identities]
    lane.expect(sorted(ran) == sorted(identities), f"{len(ran)} tasks for {ROUNDS} deliveries")


async def _at_once(lane: Lane, identity: str) -> list[Try]:
    return await asyncio.gather(*(lane.sender.send("/once", body=identity) for _ in range(TIMES)))

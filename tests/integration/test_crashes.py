"""A process that is killed between two steps loses no delivery, and its retry makes no other task.

KILLS says how often each is done.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from gateway.failpoints import CLAIMED, CONFIRMED, PUBLISHED
from tests.integration.deliveries import KEYED, deliver, expired, gather, run, state_of
from tests.support.requests import is_ready, metric
from tests.support.stack import Server
from tests.support.waiting import eventually, until

KILLS = int(os.environ.get("KILLS", "2"))  # a first process, and one that took its place
#: The lease lapses 2 s after a process is gone.
CONFIG = "confirm_timeout = 1\n" + KEYED
OWN_BROKER = True


async def deliver_to_the_doomed(gateway: Server, key: str) -> None:
    """Send a delivery that is answered by the end of the connection."""
    with pytest.raises((EOFError, ConnectionError)):
        # Quick tasks may have ended before the broker confirms: it has to write to disk first.
        await deliver(gateway, key, until=key)


@pytest.mark.parametrize("strategy", ["pika", "redis"])
async def test_a_retry_elsewhere_runs_no_other_task(servers, tmp_path, record_property, strategy):
    other = servers.gateway(strategy, CONFIG)

    async def at(name: str) -> int:
        """Kill at this step each time; return how many tasks were executed again."""
        armed, again = tmp_path / name, 0
        failpoint = {"GATEWAY_FAILPOINT": f"{name}:{armed}"}
        doomed = await asyncio.to_thread(servers.gateway, strategy, CONFIG, env=failpoint)
        for n in range(KILLS):
            key = f"{name}-{strategy}-{n:04}"
            armed.touch()
            await deliver_to_the_doomed(doomed, key)
            servers.release(key)
            assert not armed.exists()
            if name == CONFIRMED and n == 0:
                # Whoever finds the lease lapsed looks for a result first.
                await eventually(lambda key=key: expired(servers.results, key))
            # Its parent starts another, which has no part in this.
            tries = await gather(deliver(other, key), deliver(other, key))
            assert [(a.status, a.body) for a in tries] == [(200, key.encode())] * 2
            executions = servers.executions(key)
            assert len({one.task for one in executions}) == 1
            # The effect is that of the first execution; the task's id is its unique key.
            assert [one.attempt for one in executions] == list(range(1, len(executions) + 1))
            again += len(executions) - 1
            await asyncio.to_thread(until, lambda: is_ready(doomed))
        await asyncio.to_thread(doomed.stop)
        return again

    names = [CLAIMED, PUBLISHED, CONFIRMED]
    again = dict(zip(names, await gather(*map(at, names)), strict=True))

    record_property("executed_again", again)
    # The result was there before the lease had lapsed: nobody published again.
    assert again[CONFIRMED] == 0


@pytest.mark.parametrize("strategy", ["pika", "gevent"])
def test_what_was_not_confirmed_is_published_again_under_the_same_id(servers, strategy):
    gateway = servers.gateway(strategy, CONFIG)
    keys = [f"frozen-{strategy}-{n}" for n in range(10)]
    # Who publishes by kombu has to have a connection.
    assert run(deliver(gateway, f"before-{strategy}")).status == 200

    with servers.broker.frozen():
        refused = run(gather(*(deliver(gateway, key) for key in keys)))
    run(eventually(lambda: is_ready(gateway)))
    answers = run(gather(*(deliver(gateway, key) for key in keys)))

    assert {a.status for a in refused} == {503}
    assert [a.body.decode() for a in answers] == keys
    for key in keys:
        assert len({one.task for one in servers.executions(key)}) == 1


def test_a_sender_that_leaves_before_the_confirm_has_delivered(servers):
    gateway = servers.gateway("pika", KEYED)

    with servers.broker.frozen():
        left = run(deliver(gateway, "left", patience=1))
        run(eventually(lambda: metric(gateway, "gateway_clients_gone_total")))
    run(eventually(lambda: servers.executions("left")))

    assert left is None
    # Nobody has to wait until the lease lapses, and to look.
    run(eventually(lambda: state_of(servers.results, "left") == "done"))
    assert run(deliver(gateway, "left")).body == b"left"
    assert len(servers.executions("left")) == 1

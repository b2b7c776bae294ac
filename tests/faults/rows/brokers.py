"""Rows 1-8: what a broker may do."""

from __future__ import annotations

import time
from time import monotonic

from gateway.metric_table import SENT
from gateway.stack.server import poll
from tests.faults.faults import CONNECTIONS, FROZEN, KILLED, Fault
from tests.faults.lane import Lane
from tests.faults.servers import channel
from tests.faults.tasks import BEGUN
from tests.faults.trial import ALL, AT_ONCE, Trial, row

PROMPT = 1.0  # seconds in which a broker that is known to be away is answered for
UNCONFIRMED = 3.5  # seconds in which a silent broker is answered for: confirm_timeout's 3
ALARM = 6.0  # seconds that an alarm lasts at least
#: Some tasks take their time, so that something is under way whenever the fault comes.
BOTH = ("/echo", "/echo?seconds=0.05", "/echo", "/accept?seconds=0.02")


@row(1, "broker killed, restarted", (503, 504), ALL, again=True)
def killed(trial: Trial) -> None:
    """kill -9 of the Erlang VM under load, 5 s, restart."""
    trial.open(targets=BOTH)
    trial.broker.sync()
    length = trial.choose(5.5, 2.5)
    (down,) = trial.suffer(Fault(0, "broker", KILLED, length))
    for lane in trial.lanes:
        expect_prompt(lane, down.began + 1, down.began + length)


@row(2, "broker frozen for 30 s", (503, 504), ALL, again=True)
def frozen(trial: Trial) -> None:
    """SIGSTOP for 30 s, past the heartbeat's timeout."""
    trial.open(targets=BOTH)
    trial.broker.sync()
    trial.suffer(Fault(0, "broker", FROZEN, 30))
    for lane in trial.lanes:
        expect_unconfirmed(lane)


@row(3, "memory alarm", (503, 504), ALL)
def memory_alarm(trial: Trial) -> None:
    """Every publishing connection is blocked; results go on through Redis."""
    _alarm(trial, ("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "0.4"))


@row(4, "disk alarm", (503, 504))
def disk_alarm(trial: Trial) -> None:
    _alarm(trial, ("set_disk_free_limit", "999GB"), ("set_disk_free_limit", "50MB"))


def _alarm(trial: Trial, on: tuple[str, ...], off: tuple[str, ...]) -> None:
    trial.open(targets=BOTH)
    with trial.load():
        # Given a task that ends in the alarm, in each lane whose loop is not held up by it,
        waiting = {
            lane: trial.client.start_soon(lane.sender.send("/echo?until=alarm"))
            for lane in trial.lanes
            if lane.strategy != "blocking"
        }
        for lane in waiting:
            lane.expect(poll((lane.directory / BEGUN).exists, 5), "no task has begun")
        with trial.fault():
            trial.broker.ctl(*on)
            alarmed = monotonic()
            for lane in waiting:
                (lane.directory / "alarm").touch()
            # then its result comes through Redis, which `pika` does not read; what the worker
            # could not publish would come as soon as the alarm is over,
            for lane, answer in waiting.items():
                status, wanted = answer().status, 504 if lane.strategy == "pika" else 200
                lane.expect(status == wanted, f"a result in the alarm: {status}, not {wanted}")
            time.sleep(max(0, alarmed + ALARM - monotonic()))
            cleared = monotonic()
            trial.broker.ctl(*off)
    for lane in trial.lanes:
        # and new requests are refused at once when the broker has said that it is blocked.
        expect_prompt(lane, alarmed + UNCONFIRMED, cleared)


@row(5, "queue full", (503, 504))
def queue_full(trial: Trial) -> None:
    """A length limit with reject-publish, and a worker that stands still."""
    trial.open(targets=BOTH)
    with trial.load():
        asked = {lane: len(lane.tries()) for lane in trial.lanes}
        before = {lane: lane.metric(SENT) for lane in trial.lanes}
        with trial.fault():
            # Before anything waits: where more does already, RabbitMQ drops the oldest, as it knows
            # the limit a moment before it knows what to do beyond it.
            policy = '{"max-length": 20, "overflow": "reject-publish"}'
            trial.broker.ctl("set_policy", "full", "^faults-", policy, "--apply-to", "queues")
            for lane in trial.lanes:
                lane.worker.freeze()
            time.sleep(10)
            trial.broker.ctl("clear_policy", "full")
            for lane in trial.lanes:
                lane.worker.thaw()
    for lane in trial.lanes:
        sent = lane.tries()[asked[lane] :]
        tried = lane.metric(SENT) - before[lane]
        # Some were sent and not yet published when it was asked.
        lane.expect(tried <= len(sent) + 20, f"{tried:g} publishes for {len(sent)} requests")
        lane.expect(any(one.status == 503 for one in sent), "nobody was refused")


@row(6, "queue missing", (503, 504), ALL)
def queue_missing(trial: Trial) -> None:
    """Deleted while no worker is there to declare it anew."""
    trial.open()
    with trial.load(), trial.fault():
        for lane in trial.lanes:
            lane.worker.freeze()
        with channel(trial.broker) as amqp:
            for lane in trial.lanes:
                amqp.queue_delete(lane.queue)
        deleted = monotonic()
        trial.pause(10, short=2)  # `blocking` holds on to what is under way for 8 s
        back = monotonic()
        for lane in trial.lanes:
            lane.worker.thaw()
    for lane in trial.lanes:
        answered = {one.status for one in lane.tries(since=deleted) if one.answered < back}
        lane.expect(answered == {503}, f"without the queue: {answered}")


@row(7, "permission revoked", (503, 504))
def permission_revoked(trial: Trial) -> None:
    """The gateway's account, not the workers', loses all its permissions."""
    trial.broker.ctl("add_user", "gateway", "gateway")
    trial.at_exit(lambda: trial.broker.ctl("delete_user", "gateway"))
    grant = ("set_permissions", "gateway", ".*", ".*", ".*")
    trial.broker.ctl(*grant)
    own = trial.broker.url.replace("guest:guest", "gateway:gateway")
    trial.open(broker=own, worker={"broker": trial.broker.url}, targets=BOTH)
    with trial.load():
        before = {lane: _attempts(lane) for lane in trial.lanes}
        with trial.fault():
            trial.broker.ctl("clear_permissions", "gateway")
            # What was allowed once is remembered by a channel.
            trial.broker.ctl("close_all_user_connections", "gateway", "revoked")
            time.sleep(10)
            trial.broker.ctl(*grant)
    for lane in trial.lanes:
        more = lane.notes["attempts"] = _attempts(lane) - before[lane]
        lane.expect(0 < more <= 20, f"{more:g} attempts to connect")


def _attempts(lane: Lane) -> float:
    """Count the gateway's connections to the broker, those that failed included."""
    failed = lane.gateway.output().count("cannot connect to the broker at ")
    return lane.metric("gateway_broker_connections_total") + failed


@row(8, "connections closed every 5 s", (503, 504), again=True)
def connections_closed(trial: Trial) -> None:
    """All of them, the workers' too, five times."""
    trial.open(targets=BOTH)
    with trial.load(), trial.fault():
        closed = trial.inject(*(Fault(5 * n, "broker", CONNECTIONS, 0) for n in range(5)))
        time.sleep(5)
    for lane in trial.lanes:
        bystanders = [
            one
            for one in lane.tries(503)
            if not any(one.at < each.ended + 1 and one.answered > each.began for each in closed)
        ]
        lane.expect(not bystanders, f"{len(bystanders)} got a 503 between the closings")


def expect_unconfirmed(lane: Lane) -> None:
    """Expect that a 503 came by the confirm's deadline, where nothing holds up the loop."""
    if lane.strategy in AT_ONCE:
        refused = lane.tries(503)
        late = [one for one in refused if one.took > UNCONFIRMED]
        lane.expect(refused, "nobody was refused")
        lane.expect(not late, f"{len(late)} of {len(refused)} were refused only after the confirm")


def expect_prompt(lane: Lane, since: float, until: float) -> None:
    """Expect a 503, and that at once, for everything sent in this time."""
    sent = lane.tries(since=since, until=until - PROMPT)
    slow = [one for one in sent if one.status != 503 or one.took > PROMPT]
    lane.expect(sent, "nobody asked meanwhile")
    shown = [(one.route, one.status, round(one.took, 2)) for one in slow[:4]]
    lane.expect(not slow, f"{len(slow)} of {len(sent)} were not refused at once: {shown}")

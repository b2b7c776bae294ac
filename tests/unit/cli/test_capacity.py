"""gateway capacity: what follows from a rate and from measured costs."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import pytest

from gateway.celery_message import Message, encode_body
from gateway.cli import main
from gateway.cli.commands import capacity
from gateway.cli.commands.capacity import GIB, Cost, Load, Plan, waiting
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError
from loadtest import figures
from loadtest.report import Report, dump

SHIPPED = capacity.read(capacity.SHIPPED)
#: A new strategy has no costs until a report with it is committed.
MEASURED = [name for name in STRATEGIES if f"gateway {name}" in SHIPPED]
WAITS = Load(rate=1_000, task_time=0.2, strategy="pika", pool="threads", identified=0)


def but(**changes: object) -> Load:
    """Return `WAITS` with some `changes`."""
    return WAITS.model_copy(update=changes)


def test_the_shipped_costs_are_those_of_the_committed_reports():
    assert figures.COSTS.read_text("utf-8") == figures.costs_text()
    assert {cost.report for cost in SHIPPED.values()} == {f"{name}.json" for name in figures.COSTED}


def test_cpu_lies_between_what_was_measured_and_is_proportional_beyond():
    cost = Cost(points=[(100, 0.1), (300, 0.2), (400, 0.2)])
    cores = [cost.cores(rate) for rate in (50, 100, 200, 400, 800)]
    assert cores == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.4])
    rates = [cost.rate(cores) for cores in (0.05, 0.1, 0.15, 0.4)]
    assert rates == pytest.approx([50, 100, 200, 800])


def test_claims_count_in_the_limit_of_the_queues():
    def most(identified: float) -> float:
        found = Plan(but(rate=5_000, identified=identified), SHIPPED)
        (limit,) = (limit for limit in found.limits if limit.what == "queues")
        return limit.rate / found.queues

    broker, claims = SHIPPED["broker pika"], SHIPPED["broker claims"]
    assert most(0) == pytest.approx(broker.rate(1), rel=1e-6)
    of_claims = claims.cores(5_000) / 5_000  # for one request
    assert broker.cores(most(1)) + of_claims * most(1) == pytest.approx(1, rel=1e-6)
    assert most(1) < most(0)


def test_more_requests_never_use_less():
    for name, cost in SHIPPED.items():
        rates, cores = zip(*cost.points, strict=True)
        assert list(rates) == sorted(set(rates)), name
        assert list(cores) == sorted(cores), name


@pytest.mark.parametrize(
    ("slots", "busy", "seconds"),
    # M/M/1 waits busy / (1 - busy) times as long as a task takes; the second is in textbooks.
    [(1, 0.5, 1.0), (2, 1.0, 1 / 3), (100, 50.0, 0.0)],
)
def test_a_task_waits_for_a_slot_as_erlang_says(slots, busy, seconds):
    assert waiting(slots, busy, 1.0) == pytest.approx(seconds, abs=1e-6)
    assert waiting(1, 1.0, 1.0) == math.inf
    # Where there are many, it is not counted from the first one on.
    assert waiting(14 * 10**10, 10**11, 1.0) == 0.0
    assert 0 < waiting(10**9 + 1, 10**9, 1.0) <= 1.0


def test_little_s_law_gives_what_is_in_flight_and_the_slots():
    found = Plan(WAITS, SHIPPED)
    assert found.in_flight == pytest.approx(1_000 * found.seconds)
    assert 0.2 < found.seconds < 0.21
    slots = found.workers.count * found.concurrency
    assert 1_000 * 0.2 / 0.7 <= slots < 1_000 * 0.2 / 0.7 + 2 * found.concurrency
    kept = Plan(but(identified=0.5, claim_ttl=60, result_ttl=10), SHIPPED)
    assert (kept.kept_claims, kept.stored_results) == (30_000, 5_000)


@pytest.mark.parametrize("rate", [0.01, 1, 333, 20_000])
def test_nothing_planned_is_used_more_than_is_aimed_at(rate):
    for strategy, pool in product(MEASURED, ("prefork", "threads", "gevent", "solo")):
        load = Load(rate=rate, task_time=0.05, strategy=strategy, pool=pool, queue_type="quorum")
        found = Plan(load, SHIPPED)
        assert found.gateways.cores <= 0.7 * found.gateways.count + 1e-6
        assert found.workers.count * found.concurrency >= rate * 0.05 / 0.7
        assert found.brokers.cores <= 0.7 * load.cores * found.brokers.count + 1e-6
        assert found.brokers.count >= 3
        assert found.limits == sorted(found.limits, key=lambda each: each.rate)
        assert all(rate <= limit.rate for limit in found.limits)
        more = Plan(load.model_copy(update={"rate": 2 * rate}), SHIPPED)
        assert more.gateways.count >= found.gateways.count
        assert more.workers.count >= found.workers.count


def test_tasks_that_compute_need_a_core_each_and_threads_share_one():
    found = Plan(but(rate=100, task_cpu=1.0), SHIPPED)
    assert found.workers.count >= 100 * 0.2 / 0.7
    assert found.workers.cores == pytest.approx(100 * 0.2, rel=0.1)
    forked = Plan(but(rate=100, task_cpu=1.0, pool="prefork"), SHIPPED)
    assert forked.workers.count < found.workers.count


def test_what_has_an_answer_waits_in_the_gateway_as_far_as_its_strategy_can():
    held = {s: Plan(but(strategy=s), SHIPPED).gateways.count for s in MEASURED}
    assert held["blocking"] >= 200  # one at a time
    assert held["threadpool"] >= 200 / Config().threads
    assert held["pika"] <= 2


def test_a_number_of_workers_of_one_s_own_is_checked():
    found = Plan(but(workers=8, processes=5), SHIPPED)
    assert (found.workers.count, found.gateways.count) == (8, 5)
    with pytest.raises(ConfigError, match="--workers: 3 with 64 tasks at once end 9"):
        Plan(but(workers=3), SHIPPED)
    # A request costs a worker that rests more than one that is busy, which could do 1,000 a second.
    worker = Cost(points=[(100, 0.2), (900, 0.9)])
    measured = SHIPPED | {"worker pika solo": worker}
    asked = but(rate=900, task_time=0, pool="solo", workers=1)
    assert Plan(asked, measured).workers.count == 1
    with pytest.raises(ConfigError, match="--workers: 1 with 1 tasks at once end 1,000 a second"):
        Plan(asked.model_copy(update={"rate": 1_000}), measured)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("redis", {"threads": 1, "prefork": 1}), ("pika", {"threads": 2, "prefork": 9})],
)
def test_a_worker_has_a_connection_for_tasks_and_one_for_each_process_that_replies(
    strategy, expected
):
    load = Load(rate=1, task_time=0.2, strategy=strategy, concurrency=8, workers=1)
    plans = {pool: Plan(load.model_copy(update={"pool": pool}), SHIPPED) for pool in expected}
    assert {pool: plan.workers.amqp for pool, plan in plans.items()} == expected


def test_claims_that_no_machine_holds_are_what_breaks_first():
    found = Plan(but(rate=5_000, identified=1, memory=8 * GIB), SHIPPED)
    assert any("cells" in note for note in found.notes)
    assert found.claims.machines > 10
    shorter = Plan(but(identified=1, claim_ttl=600), SHIPPED)
    assert shorter.claims.count < found.claims.count


def test_a_message_is_as_large_as_the_model_says():
    headers = {"content-type": "application/json", "host": "h", "user-agent": "x" * 60}
    body = encode_body({}, headers, b"x" * 250)
    delivery = {"id": "0" * 32, "route": "/", "received_at": "2025-01-01T00:00:00+00:00"}
    message = Message("0" * 36, "api.core.main", "celery", body, delivery, expires=1e9)
    size = len(body) + len(json.dumps(message.headers()))
    assert 0.5 * capacity.MESSAGE < size - 250 < capacity.MESSAGE


def test_own_costs_replace_the_shipped_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Given a report in which a gateway costs ten times as much,
    measured = json.loads((figures.REPORTS / "openloop.json").read_text("utf-8"))
    for row in measured["rows"]:
        row["cpu_us_per_request"]["gateway"] *= 10
    report = Report("openloop", options=measured["options"], rows=measured["rows"])
    file = tmp_path / "mine.json"
    file.write_text(dump(report.document()))

    # when the command is told to use it,
    argv = ["capacity", "--rate", "4000", "--task-time", "0.01", "--strategy", "pika", "--json"]
    argv += ["--identified", "0"]
    plans = []
    for more in ([], ["--measured", str(file)]):
        assert main([*argv, *more]) == 0
        plans.append(json.loads(capsys.readouterr().out))

    # then it needs that much more, as each of the more processes has fewer requests in a turn of
    # its loop; and it says where each cost comes from.
    before, after = (found["plan"]["gateways"]["cores"] for found in plans)
    assert 9 * before < after < 25 * before
    assert plans[1]["reports"]["gateway pika"] == "mine.json"
    assert plans[1]["reports"]["memory waiting pika"] == "waiting.json"
    assert plans[0]["load"]["rate"] == 4000


NONE = "--measured: {file}: "
POINT = f"{NONE}costs.a.points[0][1]: "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no", f"{NONE}Invalid JSON: expected "),
        ("[" * 100_000, f"{NONE}Invalid JSON: recursion limit exceeded"),
        (b"\xff", f"{NONE}Invalid JSON: "),
        ("[]", f"{NONE}has to be a table"),
        ('{"experiment": "capacity", "rows": []}', f"{NONE}costs: is needed"),
        ('{"costs": {}}', f"{NONE}costs: has to have 1 or more items"),
        ('{"costs": {"a": {"points": []}}}', f"{NONE}costs.a.points: has to have 1 or more"),
        ('{"costs": {"a": {"points": [[1]]}}}', f"{POINT}is needed"),
        ('{"costs": {"a": {"points": [[1, -1]]}}}', f"{POINT}has to be 1e-09 or more"),
        ('{"costs": {"a": {"points": [[1, 0]]}}}', f"{POINT}has to be 1e-09 or more"),
        ('{"costs": {"a": {"points": [[1, NaN]]}}}', f"{POINT}has to be a number"),
        ('{"costs": {"a": {"points": [[0, 1]]}}}', f"{NONE}costs: a has no rate"),
        (None, f"{NONE}No such file or directory"),
    ],
)
def test_a_bad_report_is_one_clear_line(tmp_path, capsys, text, says):
    file = tmp_path / "m.json"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    argv = ["capacity", "--rate", "1", "--task-time", "1", "--measured", str(file)]
    assert main(argv) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"gateway: {says.format(file=file)}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "--task-time: is needed"),
        ("--task-time fast", "--task-time: has to be a number, such as 4.5"),
        ("--task-time 1 --rate nan", "--rate: has to be a number, such as 4.5"),
        ("--task-time 1 --cores 1.5", "--cores: has to be a whole number"),
        ("--task-time 1 --task-cpu 50", "--task-cpu: has to be 1 or less"),
        ("--task-time 1 --utilisation 1", "--utilisation: has to be 0.99 or less"),
        ("--task-time 1 --pool fork", "--pool: has to be 'prefork', 'threads', 'gevent' or 'solo'"),
        ("--task-time 1 --pool solo --concurrency 2",
         "--concurrency: a solo pool runs one task at a time; leave it out"),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_clear_line(capsys, options, says):
    assert main(["capacity", "--rate", "9", *options.split()]) == 1
    assert capsys.readouterr().err == f"gateway: {says}\n"


@pytest.mark.parametrize("share", ["0", "0.5"])
def test_what_claims_are_kept_for_is_told_if_there_are_any(capsys, share):
    options = ["--rate=10", "--task-time=0.1", f"--identified={share}", "--claim-ttl=60"]
    assert main(["capacity", *options]) == 0
    line = "claims: 50% of the deliveries have one (--identified), for 60 s (--claim-ttl)"
    assert (line in capsys.readouterr().out) == (share == "0.5")


def test_a_strategy_without_measured_costs_is_told(capsys, monkeypatch):
    rest = {name: cost for name, cost in SHIPPED.items() if "ioloop" not in name}
    monkeypatch.setattr(capacity, "read", lambda _: rest)
    assert main(["capacity", "--rate=1", "--task-time=1", "--strategy=ioloop"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gateway: --strategy: what ioloop costs was not measured yet; run ")
    # Nor is it enough to know some of it.
    rest["gateway ioloop"] = rest["gateway redis"]
    assert main(["capacity", "--rate=1", "--task-time=1", "--strategy=ioloop"]) == 1
    assert capsys.readouterr().err == said


def test_all_bad_options_are_told_at_once(capsys):
    assert main(["capacity", "--rate", "x", "--task-time", "y", "--strategy", "z"]) == 1
    assert capsys.readouterr().err.count("\n") == 3


def test_people_get_a_table_and_what_breaks_first(capsys):
    assert main(["capacity", "--rate", "20000", "--task-time", "0.2"]) == 0
    out = capsys.readouterr().out
    for part in ("gateway processes", "workers, prefork:8", "RabbitMQ nodes", "Redis of claims"):
        assert f"\n{part}" in out
    assert "what breaks first, and at which rate:\n" in out
    assert out.endswith("costs: capacity.json, openloop.json, slow.json, waiting.json\n")

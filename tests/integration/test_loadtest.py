"""The load test measures, and notices every answer that is wrong, missing or not 2xx."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from html import unescape
from itertools import count, takewhile
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, Self
from xml.etree import ElementTree

import pytest
from kombu import Connection

from gateway.stack.programs import find, find_rabbitmq
from loadtest import amqp, cli, client, figures, load, openloop, over_time, picture, render, wrk
from loadtest.amqp import Requester, tasks
from loadtest.bench import Bench, Front
from loadtest.experiments import (
    EXPERIMENTS,
    capacity,
    cost,
    growth,
    paths,
    pools,
    replies,
    soak,
    worker_pools,
)
from loadtest.experiments.strategies import conclude
from loadtest.experiments.waiting import NotHeld, hold
from loadtest.lab.consumers import broker, drivers
from loadtest.lab.consumers.consumer import Consumer, ConsumerError, Messages
from loadtest.lab.pools import starts
from loadtest.lab.transport_cases import CASES
from loadtest.plot import Plot
from loadtest.progress import Progress
from loadtest.report import Report
from loadtest.summary import summarize
from loadtest.targets import Target, ratios
from tests.integration.faulty_server import server
from tests.support.environment import inherited
from tests.support.rows import row
from tests.support.stack import RabbitMQ, Server, Stack, shared
from tests.support.waiting import until

RUN = Path(__file__).parents[2] / "loadtest" / "run.sh"
#: What would make a page ask for something more.
ELSEWHERE = r"https?:|src=|href=|url\(|<script"
PROCESSES = {"gateway", "worker", "broker", "redis", "nginx"}
# Other tests run at the same time.
SHORT = ["--connections", "8", "--threads", "2", "--duration", "1", "--others", "100"]

# What each experiment measures, shortly: its options, its strategies and how many bounds it judges.
HERE = "--repeats 1 --duration 1 --threads 2 --checked 20 --others 100 --strategies"
BRIEFLY = {
    "paths": (f"{HERE} redis --connections 8", "redis", 2),
    "cost": (f"{HERE} pika --connections 8 --requests 100",
        "pika pika,_stock_worker tornado tornado-below reply store ignore_result stock", 7),
    "peers": (f"{HERE} pika --connections 8",
        "pika flower fastapi granian taskiq faststream amqp", 5),
    "slow": (f"{HERE} redis,blocking --connections 4", "redis blocking", 2),
    "waiting": (f"{HERE} redis --connections 40 --task sleep:2", "redis tornado", 2),
    "alone": (f"{HERE} pika --requests 30", "pika amqp,_pika amqp,_frames", 1),
    "openloop": (f"{HERE} redis --connections 8", "redis tornado amqp amqp,_busy", 9),
    "growth": (f"{HERE} pika,threadpool", "pika threadpool", 2),
    "soak": (f"{HERE} redis --connections 8", "redis", 7),
    "capacity": (f"{HERE} pika", "pika", 15),
    "fair": (f"{HERE} redis --requests 100 --task sleep:0.02", "redis", 2),
    "separate": (f"{HERE} redis --task sleep:0.02", "redis", 1),
    "worker-pools": (f"{HERE} redis --connections 8", "redis", 1),
    "replies": (f"{HERE} pika --connections 8", "direct_reply-to reply_queue", 0),
    "fronts": (f"{HERE} pika --connections 8", "pika", 0),
    "consumers": ("--repeats 1 --connections 2 --prefetch 1,8 --requests 1000 --others 100",
        "pika py-amqp aio-pika frames", 0),
    "transports": ("--repeats 1 --requests 2000 --others 100",
        " ".join({case.transport.replace(" ", "_") for case in CASES}), 0),
    "loops": (f"{HERE} pika --connections 8 --requests 20",
        "one_thread 8_processes 100_threads aiohttp echo,_sockets echo,_streams echo,_protocols "
        "gateway,_pika", 0),
    "pools": ("--connections 2 --requests 3 --task sleep:0.1 --others 100", "gevent", 0),
}  # fmt: skip

PLOTS = {
    "growth": {"rate", "time"}, "soak": set(soak.WATCHED),
    "consumers": {"connections", "prefetch-2", "cpu-2"}, "pools": {"memory-gevent", "cpu-gevent"},
}  # fmt: skip

# The app server that rests before each task: wrk sends as fast as it is answered, and more of the
# same requests would show no more.
CALM_APP = """\
from time import sleep
from celery.signals import task_prerun
from appserver import app

@task_prerun.connect
def rest(**_):
    sleep(0.003)
"""

# A Celery app whose echo is right but for every 10th time. Its prefetch is large, as a stock
# worker sleeps over the acknowledgements of a small one; and it wakes up often, as SIGTERM alone
# would not wake it up.
FAULTY_APP = """\
import os
from itertools import count
from celery import Celery
from celery.signals import worker_ready
from kombu.asynchronous import get_event_loop

app = Celery("faulty", broker=os.environ["GATEWAY_BROKER_URL"],
             backend=os.environ["GATEWAY_RESULT_BACKEND"])
app.conf.worker_prefetch_multiplier = 100
calls, bodies = count(1), [""]

@app.task(name="appserver.tasks.echo")
def echo(query, headers, body):
    bodies.append(body)
    call = next(calls)
    if call % 20 == 10:
        return bodies[-2]
    if call % 20 == 0:
        raise ValueError("as every 20th time")
    return body

@worker_ready.connect
def wake_up_often(**_):
    get_event_loop().call_repeatedly(0.2, lambda: None)
"""


@pytest.fixture
def programs(start: Callable) -> None:
    """Skip where a server or wrk is missing, unless all tests have to run."""
    start(lambda: find("wrk", "wrk"))
    start(lambda: find("redis-server", "redis-server"))
    start(lambda: find_rabbitmq("rabbitmq-server"))


def environment(**more: str) -> dict[str, str]:
    return {**inherited(), "VIRTUAL_ENV": sys.prefix, **more}


def run(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(RUN), *args]
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=180
    )


def test_clean_run_is_reported_in_full(programs: None, tmp_path: Path):
    options = ["--strategies", "redis,ioloop", "--repeats", "1", "--checked", "200"]
    files = ["--json", "report.json", "--html", "report.html"]

    done = run("strategies", *options, *SHORT, *files, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "gateway us" in done.stdout
    assert f"share the {len(os.sched_getaffinity(0))} cores" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    check_report(report)
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") == 4 + len(over_time.WATCHED)
    assert report["advice"] in unescape(html)
    assert not re.search(ELSEWHERE, html)
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


def check_report(report: dict) -> None:
    assert report["experiment"] == "strategies"
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", report["commit"])
    named = "python celery kombu pika redis-py tornado gevent RabbitMQ Redis wrk"
    assert report["versions"].keys() >= set(named.split())
    assert report["versions"]["Redis"].split(".")[0].isdecimal()
    assert report["options"]["task"] == "appserver.tasks.echo"
    assert report["machine"].keys() == {"cores", "cpu", "memory_mb", "kernel"}
    assert report["problems"] == []
    order = [(row["repeat"], row["strategy"], row["answer"]) for row in report["rows"]]
    assert order == [(1, name, how) for name in ("redis", "ioloop") for how in ("wait", "accept")]
    assert [check["requests"] for check in report["checks"]] == [200] * 2
    for each in report["rows"]:
        assert each["connections"] == 8
        check_row(each)
    watched = report["rows"][0]["over_time"]
    assert len(watched["seconds"]) == len(watched["connections"]["broker"]) > 1
    assert max(watched["cpu_percent"]["gateway"]) > 0


def check_row(row: dict) -> None:
    assert row["errors"] == row["wrong_answers"] == 0
    assert 0.5 < row["requests"] / row["rps"] < 3  # seconds
    latency = [row["latency_ms"][name] for name in ("p50", "p90", "p99", "p999", "max")]
    assert latency[0] > 0 and latency == sorted(latency)
    for figure in ("cpu_us_per_request", "rss_mb"):
        assert row[figure].keys() == PROCESSES
        assert row[figure]["gateway"] > 0 and row[figure]["worker"] > 0
        assert row[figure]["nginx"] == 0
    assert row["connections_open"]["broker"] >= 2  # the gateway's and the worker's
    assert row["connections_open"]["redis"] >= 2


class Keeping(Stack):
    """Keeps a gateway that an experiment stops, for the next one that asks for the same."""

    def __enter__(self) -> Self:
        self._idle: dict[str, list[Server]] = {}
        return super().__enter__()

    def gateway(self, *args: str, **options: Any) -> Server:
        config = Path(args[args.index("--config") + 1]).read_text()
        idle = self._idle.setdefault(f"{config} {args} {options}", [])
        gateway = idle.pop() if idle else shared(partial(super().gateway, *args, **options))()
        gateway.stop = lambda: idle.append(gateway)  # type: ignore[method-assign]
        return gateway


@pytest.fixture(scope="module")
def servers(rabbitmq: RabbitMQ, start: Callable) -> Iterator[Stack]:
    """A stack with the RabbitMQ of all tests and one Redis, for all experiments."""
    start(lambda: find("wrk", "wrk"))
    start(lambda: find("nginx", "nginx"))
    with Connection(rabbitmq.url) as link:
        link.channel().queue_delete("celery")  # other tests may have left tasks there
    with Keeping() as stack:
        redis = start(stack.redis)
        stack.rabbitmq, stack.redis = lambda: rabbitmq, lambda: redis
        (stack.directory / "calm.py").write_text(CALM_APP)
        stack.worker = partial(stack.worker, app="calm", cwd=stack.directory)
        yield stack


@pytest.fixture
def main(servers: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """The command, with servers that have been started."""
    monkeypatch.setattr(cli, "Stack", lambda: nullcontext(servers))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield cli.main
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_faulty_task_fails_the_run(main, servers, tmp_path, monkeypatch, capsys):
    # Given a task that now answers with another request's body, now not at all,
    (tmp_path / "faulty.py").write_text(FAULTY_APP)
    monkeypatch.setattr(servers, "worker", partial(servers.worker, app="faulty", cwd=tmp_path))
    options = ["--strategies", "redis", "--repeats", "1", "--checked", "200"]

    # when it is loaded,
    files = ["--json", f"{tmp_path}/report.json", "--html", f"{tmp_path}/report.html"]
    code = main([*options, *SHORT, *files])

    # then the exit code, the figures and the text say so.
    assert code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    (row, accepted), (check,) = report["rows"], report["checks"]
    assert accepted["errors"] == accepted["wrong_answers"] == 0  # all of them have run
    assert row["wrong_answers"] > 0 and row["errors_by_kind"]["status"] > 0
    assert (check["wrong_answers"], check["not_2xx"], check["missing"]) == (10, 10, 0)
    said = capsys.readouterr().err
    assert re.search(r"redis, repeat 1, 8 connections: .*\d+ wrong answers", said)
    assert "nothing to recommend" in report["advice"]
    assert "A failed run:" in (tmp_path / "report.html").read_text()


def test_every_experiment_is_tested():
    assert BRIEFLY.keys() == EXPERIMENTS.keys() - {"strategies"}


@pytest.mark.parametrize("name", BRIEFLY)
def test_experiment_measures_judges_and_shows(servers, tmp_path, monkeypatch, name):
    line, strategies, bounds = BRIEFLY[name]
    files = "--json", f"{tmp_path}/report.json", "--html", f"{tmp_path}/report.html"
    options = cli.parse([name, *line.split(), *files, "--plots", str(tmp_path)])
    monkeypatch.setattr(amqp, "WARM_UP", 50)
    for figure, short in (("RATES", (50, 100)), ("CONTRAST", (50,)), ("TIMES", (0.01, 0.1))):
        monkeypatch.setattr(growth, figure, short)
    monkeypatch.setattr(cost, "RATES", (50,))
    monkeypatch.setattr(replies, "WORKERS", (2,))
    # The others differ from these by the address alone, or by what is pickled.
    pickled = [case for case in CASES if case.pickles and "tcp" not in case.transport]
    cases = [case for case in CASES if case.form == "bytes" or case in pickled]
    monkeypatch.setattr("loadtest.experiments.transports.CASES", cases)
    monkeypatch.setattr(growth, "CONNECTIONS", openloop.OPEN)
    monkeypatch.setattr(growth, "TIMED_RATE", 50)
    monkeypatch.setattr(paths, "PROCESSES", (1,))
    monkeypatch.setattr(soak, "SAMPLES", 2)
    monkeypatch.setattr(soak, "CONNECTIONS", openloop.OPEN)
    monkeypatch.setattr(worker_pools, "POOLS", {"solo": 1, "threads": 2})
    monkeypatch.setattr(worker_pools, "NEAR", {"threads": "solo"})
    monkeypatch.setattr(broker, "OBJECTS", {"exchange": 1.0})
    monkeypatch.setattr(broker, "BINDS", 10)
    monkeypatch.setattr(drivers, "C_LIBRARY", tmp_path)
    monkeypatch.setattr(pools, "POOLS", ("gevent",))
    monkeypatch.setattr(starts, "BEATS", starts.BEATS[:1])
    monkeypatch.setattr(starts, "BLOCKING", ())
    monkeypatch.setattr(starts, "SCRIPTS", starts.SCRIPTS[1:2])
    monkeypatch.setattr(starts, "LONG", 0.1)
    # A busy machine may keep no schedule; what is told of that has a test of its own.
    monkeypatch.setattr(load, "KEPT", 0.0)
    # So short a run says nothing of the model; it shows that everything is measured and compared.
    monkeypatch.setattr(capacity, "WITHIN", 1000)
    shape = capacity.Shape("pika", (50,))
    signed, slow = replace(shape, signed=True), replace(shape, seconds=0.05, pool="threads", size=8)
    monkeypatch.setattr(capacity, "CALIBRATION", (shape, signed, slow))
    slower = replace(slow, seconds=0.2, processes=2, workers=2, size=16)
    monkeypatch.setattr(capacity, "PREDICTED", (replace(shape, rates=(60,)), slower))

    report = cli.measure(options, servers)

    assert cli.publish(report, options) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    assert {row["strategy"].replace(" ", "_") for row in found["rows"]} == set(strategies.split())
    for each in found["rows"]:
        assert each["requests"] > 0
        assert each["errors"] == each["wrong_answers"] == 0
    # A worker that waits may need less than the clock can tell.
    assert any(any(row["cpu_us_per_request"].values()) for row in found["rows"])
    assert all(check["requests"] for check in found["checks"])
    judged = [target for target in found["targets"] if target["reached"] is not None]
    assert len(judged) == bounds
    assert all(len(target["values"]) == 1 for target in found["targets"])
    html = (tmp_path / "report.html").read_text()
    assert "<svg" in html and not re.search(ELSEWHERE, html)
    plots = {path.name for path in tmp_path.glob("*.svg")}
    assert plots == {f"{name}-{plot}.svg" for plot in PLOTS.get(name, ())}


def test_a_deployment_is_predicted_from_an_earlier_report(servers, tmp_path, monkeypatch):
    shape = capacity.Shape("pika", (50,), 0.05, processes=2, workers=2, pool="threads", size=8)
    monkeypatch.setattr(capacity, "DEPLOYED", (shape,))
    monkeypatch.setattr(capacity, "WITHIN_LATER", 1000)
    monkeypatch.setattr(load, "KEPT", 0.0)
    files = f"--json {tmp_path}/report.json --html {tmp_path}/report.html"
    line = f"capacity {HERE} pika --costs {figures.COSTS} {files}"

    report = cli.measure(cli.parse(line.split()), servers)

    assert report.problems() == []
    (row,) = report.rows
    assert row["case"] == "predicted: 0.05 s, 2+2 threads, 50/s"
    assert row["predicted"]["messages"] == row["predicted"]["in_flight"] > 2.5
    assert row["messages"] >= 0 and row["in_flight"] > 0
    assert report.experiment == "deployment" and "from costs.json" in report.remarks[0]


def test_each_driver_consumes_all_and_counts_what_comes_twice(servers: Stack):
    url = Bench(servers).broker.url
    with Messages(url, 200) as messages:
        for driver in ("pika", "py-amqp", "aio-pika", "frames"):
            with Consumer(url, driver, 8, 4, messages=200, limit=60) as consumer:
                messages.fill([5, *range(200)])
                consumer.wait_ready()
                found = consumer.run()
                consumer.end()
            assert (found["requests"], found["errors"]["missing"]) == (200, 0), driver
            assert found["wrong_answers"] == 1, driver
            # Four connections have 24 messages, of which one has the second one, and four have 26.
            assert consumer.figures["acks"] == 3 * 6 + 7 + 4 * 7, driver
            assert messages.purge() == 0, driver


def test_a_consumer_gives_up_what_never_comes(servers: Stack):
    # Given 199 of 200 messages,
    url = Bench(servers).broker.url
    with (
        Messages(url, 200) as messages,
        Consumer(url, "pika", 2, 150, messages=200, limit=2) as consumer,
    ):
        messages.fill(range(199))
        consumer.wait_ready()

        # when its time is over,
        found = consumer.run()
        consumer.end()

        # then it tells what is missing, and its other connection's messages are not lost.
        assert found["errors"]["missing"] >= 1
        assert found["requests"] + found["errors"]["missing"] == 200
        assert messages.purge() >= 99


def test_a_consumer_that_cannot_connect_says_why():
    with (
        Consumer("amqp://guest:guest@127.0.0.1:1//", "py-amqp", 1, 1, 100, 5) as consumer,
        pytest.raises(ConsumerError, match="ConnectionRefusedError: .*refused"),
    ):
        consumer.wait_ready()


FAULTS = {
    "none": (set(), set()),
    "other": ({"wrong_answers"}, {"wrong_answers"}),
    "twice": ({"wrong_answers"}, {"wrong_answers"}),
    "status": ({"status"}, {"not_2xx"}),
    "expired": ({"status", "expired"}, {"not_2xx"}),
    "redirect": ({"status"}, {"not_2xx"}),
    "close": ({"read"}, {"missing"}),
}


def scheduled_load(url: str, rate: float, seconds: float, timeout: float) -> dict:
    with openloop.schedule(url, rate, seconds) as generator:
        return generator.send(timeout)


@pytest.fixture(scope="module")
def found_by_wrk(start: Callable) -> dict[str, dict]:
    """What wrk finds of each fault: all at once, as it loads for a second at the least."""
    start(lambda: find("wrk", "wrk"))
    with ExitStack() as servers, ThreadPoolExecutor(len(FAULTS)) as threads:
        urls = {fault: servers.enter_context(server(fault)) for fault in FAULTS}
        run = partial(wrk.run, connections=8, threads=3, duration=1, timeout=5)
        return dict(zip(urls, threads.map(run, urls.values()), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_wrk_and_the_client_find_each_kind_of_fault(found_by_wrk: dict[str, dict], fault: str):
    in_wrk, in_client = FAULTS[fault]
    with server(fault) as url:
        checked = client.check(url, requests=100, at_once=20, timeout=30)
        scheduled = scheduled_load(url, rate=500, seconds=0.2, timeout=10)

    assert found_by_wrk[fault]["requests"] > 100
    for result in (found_by_wrk[fault], scheduled):
        counts = {"wrong_answers": result["wrong_answers"], **result["errors"]}
        found = {kind for kind, number in counts.items() if number}
        assert found <= in_wrk and bool(found) == bool(in_wrk)
    # The schedule goes on, over another connection where one was closed.
    lost = scheduled["errors"]["read"]
    assert scheduled["requests"] == 100 - lost and lost == 2 * ("read" in in_wrk)
    assert scheduled["wrong_answers"] == 2 * ("wrong_answers" in in_wrk)
    answered = scheduled["errors"]["status"] + scheduled["errors"]["expired"]
    assert answered == 2 * ("status" in in_wrk)
    assert {kind for kind, number in checked.items() if number} - {"requests"} == in_client
    assert sum(checked.values()) - checked["requests"] in ((2,) if in_client else (0,))


def test_wrk_misses_the_answer_of_a_connection_that_hangs_while_the_others_go_on(start: Callable):
    start(lambda: find("wrk", "wrk"))
    with server("hang") as url:
        found = wrk.run(url, connections=8, threads=2, duration=5, timeout=5)
    assert found["requests"] > 100
    assert found["errors"]["missing"] == 1


def test_clients_give_up_what_is_never_answered():
    # Given a socket that takes connections and says nothing,
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        checked = client.check(url, requests=5, at_once=2, timeout=0.2)
        asked = client.one_by_one(url, requests=5, timeout=0.2)
        scheduled = scheduled_load(url, rate=50, seconds=0.1, timeout=0.2)
    assert checked == {"requests": 5, "wrong_answers": 0, "not_2xx": 0, "missing": 5}
    assert (asked["requests"], asked["errors"]["missing"]) == (0, 1)
    assert (scheduled["requests"], scheduled["errors"]["missing"]) == (0, 5)


def test_clients_without_http_find_wrong_and_missing_results(servers: Stack, tmp_path: Path):
    # Given a worker that answers now with another task's body, now not at all,
    (tmp_path / "faulty.py").write_text(FAULTY_APP)
    bench = Bench(servers)
    results = f"appserver.reply_backend:ReplyBackend+{bench.redis.url}"
    worker = servers.worker(bench.broker.url, results, app="faulty", cwd=tmp_path)
    try:
        for way in ("reply", "store"):
            # when its tasks are counted,
            row = tasks(bench, way, 100, "solo").measure(Front("", {"worker": worker}))

            # then both kinds are found, and not taken for missing ones.
            assert (row["requests"], row["wrong_answers"], row["errors"]) == (100, 10, 0)
    finally:
        worker.stop()

    # And with no worker at all, everything is missing.
    with Requester(bench.broker.url, timeout=0.2) as requester:
        found = requester.round_trips(3, requests=5)
    assert (found["requests"], found["errors"]["missing"]) == (0, 3)
    bench.broker.ctl("purge_queue", "celery")


def test_connections_are_counted_as_the_broker_lists_them(servers: Stack):
    bench = Bench(servers)

    def listed() -> int:
        return len(bench.broker.ctl("list_connections", "pid", "--no-table-headers").splitlines())

    with Requester(bench.broker.url), Requester(bench.broker.url):
        # Not at once, as those of earlier tests may just be ending.
        until(lambda: bench.connections_open()["broker"] == listed() >= 2)


def test_what_was_not_held_at_once_is_no_measurement(servers: Stack):
    bench = Bench(servers)
    with (
        bench.alone(0.05, "--announce", "9") as front,
        pytest.raises(NotHeld, match="8 requests were not held at once: [1-8] answers"),
    ):
        hold(front, 8, seconds=0.05, timeout=5)


def test_a_soak_tells_what_grows_from_what_has_settled():
    # Given what fills up until the third of ten minutes, and what goes on,
    seconds = [30 * n for n in range(21)]
    settled = [{"seconds": s, "keys": min(s, 180)} for s in seconds]
    growing = [{"seconds": s, "keys": s} for s in seconds]
    nothing, something = ([{"seconds": s, "keys": n * s} for s in seconds] for n in (0, 1))
    something[:15] = nothing[:15]

    # when the end is compared with the beginning behind that,
    found = [soak.growth(each, "keys", 180) for each in (settled, growing, nothing, something)]

    # then only what goes on has grown, also where there was nothing before.
    assert found[0] == found[2] == 1
    assert found[1] > soak.FLAT
    assert found[3] > soak.FLAT


def test_of_what_was_never_there_a_soak_says_nothing():
    samples = [{"seconds": s, **dict.fromkeys(soak.WATCHED, 3), "channels": 0} for s in range(9)]
    level = dict.fromkeys(soak.WATCHED.keys() - {"channels"}, 1.0)
    assert soak.growths(samples, 0) == level
    assert soak.growths(samples[:1], 180) == level  # no other sample was taken in time


def test_a_soak_takes_no_sample_of_what_is_being_stopped():
    # Given a load that ends while the second sample is taken,
    ended, taken = Event(), count(1)

    def holdings(front: Front) -> dict[str, int]:
        number = next(taken)
        if number == 2:
            ended.set()
        return {"descriptors": number}

    # when samples are taken all the time,
    bench: Any = SimpleNamespace(holdings=holdings)
    samples = soak._sample(bench, Front(""), 0.0, ended)

    # then the one that overlaps the end is left out, and there is no further one.
    assert [sample["descriptors"] for sample in samples] == [1]
    assert next(taken) == 3


CASE = "64 connections"


def test_ratios_are_of_rows_of_the_same_repeat():
    # Given two strategies' rates, of which the machine's mood changes both,
    rates = {("a", 1): 100, ("b", 1): 50, ("a", 2): 300, ("b", 2): 100, ("b", 3): 70, ("a", 4): 9}
    rows = [{**row(name, rps), "repeat": n} for (name, n), rps in rates.items()]

    # when one is divided by the other,
    values = ratios(rows, ("rps",), ("a", CASE), ("b", CASE))

    # then only what was measured in the same round is compared, and a median is judged.
    assert values == [2, 3]
    verdicts = [Target("", values, **bound).verdict for bound in (
        {"at_least": 2.5}, {"at_least": 2.6}, {"at_most": 2.5}, {"at_most": 2.4}, {},
    )]  # fmt: skip
    assert verdicts == ["reached", "missed", "reached", "missed", "-"]


@pytest.fixture
def report() -> Report:
    """A report of two strategies, with a text that HTML would take for more than text."""
    rates, latency = (("a", 9), ("<b>", 3)), {"p99": 5.0}
    rows = [row(name, rps, repeat=n, latency_ms=latency) for n in (1, 2) for name, rps in rates]
    machine = {"cores": 2, "cpu": "R&D", "memory_mb": 2048, "kernel": "Linux"}
    found = Report("mine", rows=rows, machine=machine, options={"repeats": 2, "duration": 1})
    found.judge(Target("a / <b>", ratios(rows, ("rps",), ("a", CASE), ("<b>", CASE)), at_least=2))
    lines = {"a": [(1, 5, 4, 6), (10, 7, 7, 7)], "<b>": [(1, 3, 1, 4)]}
    found.plots = [
        Plot("marked", "Over $1 and $2", "rate", "µs", lines),
        Plot("long", "Over time", "minutes", "MB", lines, linear=True),
    ]
    return found


def test_a_page_says_first_what_was_found_and_needs_nothing_else(report: Report):
    drawn = render.draw(report)
    assert not re.search(ELSEWHERE, drawn)
    assert "<b>" not in drawn and "R&amp;D" in drawn
    text = unescape(re.sub(r"<style>.*?</style>|<[^>]*>|\s+(?=\s)", "", drawn, flags=re.DOTALL))
    assert text.split("Load test: mine")[2].strip().startswith("Reached: a / <b> 3.00.")
    assert drawn.count("<svg") == 5  # and no chart of a figure that no row has
    # Where the run has failed, that comes before.
    report.failures.append("a, repeat 1: it broke")
    drawn = render.draw(report)
    assert drawn.index("it broke") < drawn.index("Reached: ")


def test_a_plot_is_a_file_of_its_own_and_the_same_again(report: Report):
    for plot in report.plots:
        drawn = picture.lines(plot)
        assert picture.lines(plot) == drawn
        assert not re.search(r"href=|url\(|<script|<metadata", drawn)
        texts = [each.text for each in ElementTree.fromstring(drawn).iter() if each.text]
        assert {"a", "<b>", plot.x, plot.y} <= set(texts)


def test_progress_and_figures_are_plain_lines_where_there_is_no_terminal(report, capsys):
    with Progress(90) as progress:
        progress.step("[a], repeat 1 of 2: starting", 8)
        progress.note("9 req/s")
    report.show()
    first, second, blank, head, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "0:00:00  [a], repeat 1 of 2: starting (about 0:01:30 left)"
    assert (second, blank) == ("         9 req/s", "")
    assert re.match("strategy  case +errors  wrong +req/s ", head)
    assert re.match(rf"a +{CASE} +0 +0 +9.0 \(9.0-9.0\) ", lines[0])
    assert lines[-1] == "Reached: a / <b> 3.00."


@pytest.mark.parametrize(
    ("rows", "faulty", "begin"),
    [
        ([row("pika", 900), row("redis", 500)], set(), "Use pika: at 64"),
        # The ranges overlap, and redis asks less of the workers.
        ([row("pika", 900), row("pika", 700), row("redis", 750)], set(), "Use redis: at 64"),
        ([row("pika", 900, errors=1), row("redis", 500)], set(), "Not before their errors"),
        ([row("pika", 900), row("redis", 500)], {"pika"}, "Not before their errors"),
    ],
)
def test_conclusion_follows_from_the_numbers(rows: list[dict], faulty: set, begin: str):
    conclusion = conclude(summarize(rows), faulty)
    assert conclusion.startswith(begin)
    assert f"Use {'redis' if 'Use pika' not in begin else 'pika'}: " in conclusion


def test_the_advice_says_what_to_use_for_each_task_and_when_to_accept():
    slow = {"case": "50 ms, 64 connections", "answer": "wait", "task_seconds": 0.05}
    fast = {"case": "echo, 64 connections", "answer": "wait"}
    rows = [
        row("pika", 900, **fast),
        row("redis", 500, **fast),
        row("pika", 300, **slow),
        row("redis", 310, **slow),
        row("redis", 290, **slow),
        row("redis", 750, case="accept, 64 connections", answer="accept"),
    ]
    advice = conclude(summarize(rows))
    assert advice.startswith("Use pika: at echo, 64 connections it answers 900 requests/s")
    assert "Use redis: at 50 ms, 64 connections it answers 300 requests/s" in advice
    assert advice.endswith("over those with the result, at 64 connections: redis 1.5.")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["dance"], r"loadtest: no experiment 'dance'; there is: strategies, paths, cost, .*\n"),
        (["--strategies", "carrier-pigeon"], r"(?s).*no strategy 'carrier-pigeon'; there are .*"),
        (["--connections", "0"], r"(?s).*'0' is no whole number from 1 to .*"),
        (["--task", "dance"], r"(?s).*'dance' is neither echo nor sleep:SECONDS.*"),
        (["--others", "many"], r"(?s).*'many' is no number from 0 to 100.*"),
        (["waiting", "--task", "echo,sleep:1"], r"loadtest: --task: only strategies takes .*\n"),
        (["--json", "nowhere/report.json"], r"(?s).*'nowhere/report.json' cannot be written.*"),
        (["--plots", "nowhere"], r"(?s).*'nowhere' is no directory.*"),
    ],
)
def test_mistakes_in_options_are_told_at_once(tmp_path: Path, args: list[str], says: str):
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(says, done.stderr)


def test_missing_wrk_is_told_in_one_line(tmp_path: Path):
    for program in ("env", "bash", "dirname", "readlink"):
        (tmp_path / program).symlink_to(shutil.which(program))
    done = run("--html", "report.html", cwd=tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "loadtest: wrk is missing: install wrk\n")


def test_interrupt_stops_everything(programs: None, tmp_path: Path):
    # Given a run that has begun to load its first gateway, with an app server of one's own, whose
    # faults show that it is in the place of ours,
    own, temporary = tmp_path / "own", tmp_path / "temporary"
    own.mkdir()
    temporary.mkdir()
    (own / "appserver.py").write_text(FAULTY_APP)
    process = subprocess.Popen(
        [str(RUN), "--strategies", "redis", "--checked", "100"],
        cwd=tmp_path,
        env=environment(TMPDIR=str(temporary), PYTHONPATH=str(own)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        said = list(takewhile(lambda line: "64 connections" not in line, process.stdout))
        started = started_in(temporary)

        # when it is interrupted,
        process.send_signal(signal.SIGINT)

        # then it stops all that it has started, and leaves no file.
        assert process.stderr.read() == "loadtest: interrupted, everything is stopped\n"
        assert process.wait() == 130
    assert said[-1].strip() == "FAILED: 5 wrong answers, 5 not 2xx"
    assert len(started) > 5
    # A server's own processes end a moment after it.
    until(lambda: started_in(temporary) == [])
    assert list(temporary.iterdir()) == []


def started_in(directory: Path) -> list[str]:
    """List the processes that have `directory` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={directory}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return found

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
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from gateway.stack.programs import find, find_rabbitmq
from loadtest import client, wrk
from loadtest.experiments.strategies import conclude
from loadtest.summary import summarize

RUN = Path(__file__).parents[2] / "loadtest" / "run.sh"
PROCESSES = {"gateway", "worker", "broker", "redis", "nginx"}
SHORT = ["--connections", "8", "--threads", "2", "--duration", "1"]

# A Celery app whose echo is right but for every 10th time. Its prefetch is large, as a stock
# worker sleeps over the acknowledgements of a small one.
FAULTY_APP = """\
import os
from itertools import count
from celery import Celery

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
"""


@pytest.fixture
def programs(start: Callable) -> None:
    """Skip where a server or wrk is missing, unless all tests have to run."""
    start(lambda: find("wrk", "wrk"))
    start(lambda: find("redis-server", "redis-server"))
    start(lambda: find_rabbitmq("rabbitmq-server"))


def environment(**more: str) -> dict[str, str]:
    inherited = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {**inherited, "VIRTUAL_ENV": sys.prefix, **more}


def run(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(RUN), *args]
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=180
    )


def test_clean_run_is_reported_in_full(programs: None, tmp_path: Path):
    options = ["--strategies", "redis,ioloop", "--repeats", "2"]
    files = ["--json", "report.json", "--html", "report.html"]

    done = run("strategies", *options, *SHORT, *files, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "gateway us" in done.stdout
    assert f"share the {len(os.sched_getaffinity(0))} cores" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    check_report(report)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert report["conclusion"] in page.replace("&#x27;", "'")
    assert not re.search(r"https?:|src=|href=|url\(|<script", page)


def check_report(report: dict) -> None:
    assert report["experiment"] == "strategies"
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", report["commit"])
    named = "python celery kombu pika redis-py tornado gevent RabbitMQ Redis wrk"
    assert report["versions"].keys() >= set(named.split())
    assert report["versions"]["Redis"].split(".")[0].isdecimal()
    assert report["machine"].keys() == {"cores", "cpu", "memory_mb", "kernel"}
    assert report["problems"] == []
    order = [(row["repeat"], row["strategy"]) for row in report["rows"]]
    assert order == [(1, "redis"), (1, "ioloop"), (2, "redis"), (2, "ioloop")]
    assert [check["requests"] for check in report["checks"]] == [2_000] * 4
    for row in report["rows"]:
        check_row(row)


def check_row(row: dict) -> None:
    assert row["connections"] == 8
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


def test_faulty_task_fails_the_run(programs: None, tmp_path: Path):
    # Given a task that now answers with another request's body, now not at all,
    (tmp_path / "appserver.py").write_text(FAULTY_APP)
    options = ["--strategies", "redis", "--repeats", "1", "--json", "report.json"]

    # when it is loaded in the place of our own,
    done = run(*options, *SHORT, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    # then the exit code, the figures and the text say so.
    assert done.returncode == 1, done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    (row,), (check,) = report["rows"], report["checks"]
    assert row["wrong_answers"] > 0 and row["errors_by_kind"]["status"] > 0
    assert (check["wrong_answers"], check["not_2xx"], check["missing"]) == (100, 100, 0)
    assert re.search(r"redis, repeat 1, 8 connections: .*\d+ wrong answers", done.stderr)
    assert "nothing to recommend" in report["conclusion"]


@contextmanager
def server(fault: str) -> Iterator[str]:
    """Answer POSTs with their bodies, but every 50th as `fault` says; give the URL."""
    requests, bodies = count(1), [b""]

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(body)
            status, faulty = 200, next(requests) % 50 == 0
            if faulty and fault == "close":
                self.close_connection = True
                return
            if faulty and fault == "status":
                status = 503
            if faulty and fault == "redirect":
                status = 302
            if faulty and fault == "other":
                body = bodies[-40]
            if faulty and fault == "twice":
                body += body
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as http:
        thread = Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/"
        finally:
            http.shutdown()
            thread.join()


FAULTS = {
    "none": (set(), set()),
    "other": ({"wrong_answers"}, {"wrong_answers"}),
    "twice": ({"wrong_answers"}, {"wrong_answers"}),
    "status": ({"status"}, {"not_2xx"}),
    "redirect": ({"status"}, {"not_2xx"}),
    "close": ({"read"}, {"missing"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrk_and_the_client_find_each_kind_of_fault(programs: None, fault: str):
    in_wrk, in_client = FAULTS[fault]
    with server(fault) as url:
        loaded = wrk.run(url, connections=8, threads=3, duration=1, timeout=5)
        checked = client.check(url, requests=500, at_once=20, timeout=30)

    assert loaded["requests"] > 100
    counts = {"wrong_answers": loaded["wrong_answers"], **loaded["errors"]}
    found = {kind for kind, number in counts.items() if number}
    assert found <= in_wrk and bool(found) == bool(in_wrk)
    assert {kind for kind, number in checked.items() if number} - {"requests"} == in_client
    assert sum(checked.values()) - checked["requests"] in ((10,) if in_client else (0,))


def test_client_gives_up_what_is_never_answered():
    # Given a socket that takes connections and says nothing,
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        checked = client.check(url, requests=5, at_once=2, timeout=0.2)
    assert checked == {"requests": 5, "wrong_answers": 0, "not_2xx": 0, "missing": 5}


def row(strategy: str, rps: float, errors: int = 0) -> dict:
    return {
        "strategy": strategy, "connections": 64, "requests": 1000, "rps": rps, "errors": errors,
        "wrong_answers": 0, "latency_ms": {"p99": 5.0}, "cpu_us_per_request": {"gateway": 100.0},
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["cost"], r"loadtest: no experiment 'cost'; there is: strategies\n"),
        (["--strategies", "carrier-pigeon"], r"(?s).*no strategy 'carrier-pigeon'; there are .*"),
        (["--connections", "0"], r"(?s).*'0' is no whole number from 1 to .*"),
        (["--task", "dance"], r"(?s).*'dance' is neither echo nor sleep:SECONDS.*"),
        (["--json", "nowhere/report.json"], r"(?s).*'nowhere/report.json' cannot be written.*"),
    ],
)
def test_mistakes_in_options_are_told_at_once(tmp_path: Path, args: list[str], says: str):
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(says, done.stderr)


def test_missing_wrk_is_told_in_one_line(tmp_path: Path):
    for program in ("env", "bash", "dirname", "readlink"):
        (tmp_path / program).symlink_to(shutil.which(program))
    done = run(cwd=tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "loadtest: wrk is missing: install wrk\n")


def test_interrupt_stops_everything(programs: None, tmp_path: Path):
    # Given a run that has begun to load its first gateway,
    process = subprocess.Popen(
        [str(RUN), "--strategies", "redis"],
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert any("64 connections" in line for line in process.stdout)
        assert len(started_in(tmp_path)) > 5

        # when it is interrupted,
        process.send_signal(signal.SIGINT)

        # then it stops all that it has started, and leaves no file.
        assert process.stderr.read() == "loadtest: interrupted, everything is stopped\n"
        assert process.wait() == 130
    assert started_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


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

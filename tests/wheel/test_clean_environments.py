"""The wheel by itself in clean environments, beside each Celery; `make wheel` runs this.

Packages are fetched by pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from gateway.config.strategies import STRATEGIES, properties
from gateway.stack.stack import answers_ok
from tests.integration.test_package import ROOT, build
from tests.support.environment import inherited
from tests.support.otlp import Collector
from tests.support.stack import RabbitMQ, Server, Stack, free_port

CELERIES = ("5.4", "5.5", "5.6", "5.7")
QUEUE = "wheel"

SHOP = """\
import os
import appserver, celery

app = celery.Celery("shop", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
appserver.setup(app)

@app.task(name="shop.version", bind=True)
def version(self, query, headers, body):
    return appserver.Answer(201, {"celery": celery.__version__, "body": body}, {"ETag": "x"})
"""


#: A project that was there before, and knows nothing of any gateway.
BILLING = """\
import os
from celery import Celery, Task

app = Celery("billing", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(
    task_serializer="pickle", result_serializer="json", accept_content=["pickle", "json"],
    task_default_queue="billing", timezone="Asia/Shanghai", enable_utc=False, result_expires=60,
    task_track_started=True,
)

@app.task
def charge(order, amount, currency="CNY", *, customer):
    return {"order": order, "amount": amount, "currency": currency, "customer": customer}

class Notify(Task):
    name = "billing.notify"

    def run(self, *addresses, **more):
        return [*addresses, more]

app.register_task(Notify())
"""
BILLING_ROUTES = """\
[[routes]]
path = "/charge/{currency}"
task = "billing.charge"
queue = "billing"
args = ["json:/order/id", "json:/order/amount"]
kwargs = { currency = "param:currency", customer = "header:x-customer" }

[[routes]]
path = "/notify"
task = "billing.notify"
queue = "billing"
args = ["json:/to/0", { from = "json:/to/1", default = "nobody" }]
kwargs = { page = "query:page", raw = "body" }
"""


class Environment:
    """A virtual environment of one's own."""

    def __init__(self, home: Path):
        self.bin = home / "bin"
        subprocess.run([sys.executable, "-m", "venv", home], check=True)

    def install(self, *requirements: str) -> None:
        argv = [self.bin / "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*argv, *requirements], check=True)

    def versions(self) -> dict[str, str]:
        argv = [self.bin / "pip", "--disable-pip-version-check", "list", "--format", "json"]
        done = subprocess.run(argv, check=True, capture_output=True)
        return {one["name"]: one["version"] for one in json.loads(done.stdout)}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("shop")
    (home / "shop.py").write_text(SHOP)
    (home / "gateway.toml").write_text(
        f'[[routes]]\npath = "/"\ntask = "shop.version"\nqueue = "{QUEUE}"\n'
    )
    return home


@pytest.fixture(scope="module", params=CELERIES)
def beside(request, wheel, tmp_path_factory) -> Environment:
    """An environment with this Celery, to which the wheel has been added."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install(f"celery[redis]=={request.param}.*")
    before = environment.versions()
    environment.install(str(wheel))
    # Nothing that the app had is replaced.
    assert before.items() <= environment.versions().items()
    assert before["celery"].startswith(request.param)
    environment.celery = before["celery"]
    return environment


@pytest.fixture
def worker(
    beside, shop, stack: Stack, rabbitmq: RabbitMQ, redis_server: Server
) -> Iterator[Server]:
    argv = [beside.bin / "celery", "-A", "shop", "worker", "-n", f"{beside.celery}@localhost"]
    worker = stack.spawn(
        "worker",
        [*map(str, argv), "-Q", QUEUE, "-c", "2", "-l", "INFO"],
        env={"BROKER": rabbitmq.url, "BACKEND": redis_server.url},
        cwd=shop,
        ready="ready.",
    )
    yield worker
    worker.stop()


def gateway(
    stack: Stack,
    program: Path | str,
    strategy: str,
    shop: Path,
    broker: str,
    results: str,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Server:
    ports = free_port(), free_port()
    argv = [str(program), "serve", "--strategy", strategy, "--broker", broker]
    argv += ["--result-backend", results, "--config", str(shop / "gateway.toml")]
    argv += ["--port", str(ports[0]), "--admin-port", str(ports[1])]
    server = stack.spawn("gateway", argv, env=env, ready=lambda: answers_ok(ports[1], "/readyz"))
    server.url = f"http://127.0.0.1:{ports[0]}/"
    return server


def post(
    url: str, body: str, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, object]:
    request = urllib.request.Request(url, body.encode(), dict(headers))
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_a_worker_with_any_celery_serves(
    beside, worker, shop, stack, rabbitmq, redis_server, strategy
):
    program = Path(sys.executable).parent / "gateway"
    server = gateway(stack, program, strategy, shop, rabbitmq.url, redis_server.url)
    for number in range(20):
        answer = post(server.url, f"hello {number}")
        assert answer == (201, {"celery": beside.celery, "body": f"hello {number}"})
    server.stop()
    argv = [str(beside.bin / "celery"), "-A", "shop", "inspect", "conf", "--json"]
    env = inherited() | {"BROKER": rabbitmq.url, "BACKEND": redis_server.url}
    told = subprocess.run(argv, cwd=shop, env=env, capture_output=True, text=True, timeout=60)
    (settings,) = json.loads(told.stdout).values()
    assert settings["result_backend"].startswith("redis://")
    assert "Traceback" not in worker.output()


def test_the_tasks_of_an_existing_project_are_called_as_they_are(
    beside, stack, rabbitmq, redis_server, tmp_path
):
    (tmp_path / "billing.py").write_text(BILLING)
    (tmp_path / "gateway.toml").write_text(BILLING_ROUTES)
    argv = [str(beside.bin / "celery"), "-A", "billing", "worker", "-c", "2", "-l", "INFO"]
    # As root Celery accepts pickle only where it is told to.
    urls = {"BROKER": rabbitmq.url, "BACKEND": redis_server.url, "C_FORCE_ROOT": "1"}
    worker = stack.spawn("worker", argv, env=urls, cwd=tmp_path, ready="ready.")
    program = Path(sys.executable).parent / "gateway"
    order = {"order": {"id": 7, "amount": "9.90"}, "to": ["a@example.com"]}
    body = json.dumps(order)
    for strategy in STRATEGIES:
        if not properties(strategy).stored:  # `pika` needs the app server
            continue
        server = gateway(stack, program, strategy, tmp_path, rabbitmq.url, redis_server.url)
        charged = post(f"{server.url}charge/EUR", body, {"X-Customer": "c1"})
        notified = post(f"{server.url}notify?page=2", body)
        server.stop()
        charge = {"order": 7, "amount": "9.90", "currency": "EUR", "customer": "c1"}
        assert charged == (200, charge)
        assert notified == (200, ["a@example.com", "nobody", {"page": "2", "raw": body}])
    worker.stop()
    assert "Traceback" not in worker.output()


def test_the_command_needs_its_extra(beside):
    done = subprocess.run([beside.bin / "gateway", "check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'CHECKOUT-OR-WHEEL[serve]'" in done.stderr


def test_the_gateway_in_one_environment_with_any_celery(
    beside, wheel, worker, shop, stack, rabbitmq, redis_server
):
    beside.install(f"{wheel}[gevent]")
    assert beside.versions()["celery"] == beside.celery
    for strategy in STRATEGIES:
        program = beside.bin / "gateway"
        server = gateway(stack, program, strategy, shop, rabbitmq.url, redis_server.url)
        for number in range(20):
            answer = post(server.url, f"hello {number}")
            assert answer == (201, {"celery": beside.celery, "body": f"hello {number}"})
        server.stop()


def test_traces_in_a_clean_environment(wheel, shop, stack, rabbitmq, redis_server, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.install(f"{wheel}[serve]")
    program = str(environment.bin / "gateway")
    traced = {**os.environ, "GATEWAY_TRACE_SAMPLE": "1"}
    done = subprocess.run([program, "serve"], env=traced, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "trace_sample: no opentelemetry: pip install 'CHECKOUT-OR-WHEEL[otel]'" in done.stderr
    environment.install(f"{wheel}[otel]")
    urls = {"BROKER": rabbitmq.url, "BACKEND": redis_server.url}
    worker = stack.worker("", app="shop", queues=(QUEUE,), env=urls, cwd=shop)
    with Collector() as collector:
        env = {"GATEWAY_TRACE_SAMPLE": "1", "GATEWAY_TRACE_ENDPOINT": collector.url}
        server = gateway(stack, program, "pika", shop, rabbitmq.url, redis_server.url, env)
        assert post(server.url, "hello")[0] == 201
        server.stop()
        assert {span.name for span in collector.spans} >= {"POST /", "publish"}
    worker.stop()


def test_dev_in_a_clean_environment(wheel, stack, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.install(f"{wheel}[dev]")
    port = free_port()
    argv = [environment.bin / "gateway", "dev", "--port", port, "--admin-port", free_port()]
    dev = stack.spawn(
        "dev", list(map(str, argv)), env={"PATH": os.environ["PATH"]}, ready="Ctrl-C stops"
    )
    url = f"http://127.0.0.1:{port}/"
    assert urllib.request.urlopen(url, data=b"hello", timeout=30).read() == b"hello"
    dev.stop()

"""Metrics that are pushed to a collector: the same ones as on the admin port."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin import otlp, push
from gateway.admin.push import Push
from gateway.config.settings import Config
from gateway.metric_table import GAUGE, HISTOGRAM, METRICS, PARENT
from tests.integration.test_tracing import imported
from tests.support.otlp import Collector, Pushed, attributes
from tests.support.requests import get, post_all
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import eventually, until

ROUTE = """
[[routes]]
path = "/late"
deadline = 0.2
"""
#: What a metric's unit adds to its name in Prometheus.
#: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
ENDINGS = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}
Start = Callable[..., Server]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def start(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, tmp_path) -> Iterator[Start]:
    started = []

    def start(settings: str, *options: str, **env: str) -> Server:
        config = tmp_path / "gateway.toml"
        config.write_text(settings + ROUTE)
        urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
        started.append(stack.gateway(*urls, "--config", str(config), *options, env=env))
        return started[-1]

    yield start
    for gateway in started:
        gateway.stop()


def to(collector: Collector, interval: float = 1) -> str:
    return f'metrics_endpoint = "{collector.url}"\nmetrics_interval = {interval}\n'


def request(gateway: Server, number: int) -> None:
    answers = post_all(f"{gateway.url}/late", [b"x"] * number)
    answers += post_all(f"{gateway.url}/nowhere", [b"x"] * 2)
    assert [answer.code for answer in answers] == [504] * number + [404] * 2


def answered(pushed: Pushed) -> int:
    duration = pushed.metrics.get("http.server.request.duration")
    return sum(point.count for point in duration.histogram.data_points) if duration else 0


def translated(name: str, metric: Any) -> str:
    """Return the name that Prometheus gives to a metric of OTLP."""
    found = name.replace(".", "_") + ENDINGS.get(metric.unit, "")
    return found + "_total" * metric.sum.is_monotonic


def points(metric: Any) -> dict[frozenset[tuple[str, str]], Any]:
    """Return the points of a metric by their attributes, named as Prometheus does."""
    found = getattr(metric, metric.WhichOneof("data")).data_points
    return {
        frozenset((k.replace(".", "_"), str(v)) for k, v in attributes(point).items()): point
        for point in found
    }


def test_what_is_pushed_is_what_the_admin_port_shows(start, collector):
    gateway = start(to(collector, 3_600), "--processes=2", OTEL_SERVICE_NAME="hooks")
    request(gateway, 30)
    page = get(f"{gateway.admin_url}/metrics").body.decode()
    gateway.stop()
    pushed = collector.pushes[-1]
    assert pushed.resource["service.name"] == "hooks"
    assert {"service.version", "service.instance.id"} <= pushed.resource.keys()
    metrics = {translated(name, metric): metric for name, metric in pushed.metrics.items()}
    families = [one for one in text_string_to_metric_families(page) if one.samples]
    shown = {one.name + "_total" * (one.type == "counter") for one in families}
    # The processes have ended, and have nothing in flight any more.
    ended = {name for name, metric in METRICS.items() if metric.type == GAUGE}
    assert shown - ended == metrics.keys() > PARENT.keys()

    duration = pushed.metrics["http.server.request.duration"]
    assert duration.unit == "s"
    assert duration.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    codes = {
        (point["http.response.status_code"], point["http.request.method"], point["http.route"])
        for point in map(attributes, duration.histogram.data_points)
        if "http.route" in point
    }
    assert codes == {(504, "POST", "/late")}  # a number, as the conventions say

    # What requests have counted is the same in both; the rest changes with the end.
    compared = 0
    for family in families:
        for sample in family.samples:
            name = sample.name
            labels = {k: v for k, v in sample.labels.items() if v}
            bound = labels.pop("le", "")
            metric = next((n for n in METRICS.keys() & metrics if name.startswith(n)), "")
            if not metric or "connections" in name or "lag" in name:
                continue
            point = points(metrics[metric])[frozenset(labels.items())]
            if name.endswith("_bucket"):
                limits = [*point.explicit_bounds, float("inf")]
                place = limits.index(float(bound))
                assert sum(point.bucket_counts[: place + 1]) == sample.value
                assert not point.HasField("min")
            elif METRICS[metric].type == HISTOGRAM:
                value = point.count if name.endswith("_count") else point.sum
                assert value == pytest.approx(sample.value)
            else:
                assert point.as_double == sample.value
            compared += 1
    assert compared > 100


def test_it_goes_on_through_a_reload_which_may_end_it(start, collector, tmp_path):
    gateway = start(to(collector))
    until(lambda: len(collector.pushes) > 1)
    config = tmp_path / "gateway.toml"
    config.write_text(ROUTE)
    os.kill(gateway.pid, signal.SIGHUP)
    until(lambda: "supervisor: reloaded" in gateway.output())
    with Collector() as other:
        config.write_text(to(other) + ROUTE)
        os.kill(gateway.pid, signal.SIGHUP)
        until(lambda: gateway.output().count("supervisor: reloaded") == 2)
        gateway.stop()
        assert other.pushes[-1].metrics["gateway.processes"].gauge.data_points[0].as_double == 0


def test_a_collector_that_is_gone_is_told_once_and_when_it_is_back(start):
    port = free_port()
    settings = f'metrics_endpoint = "http://127.0.0.1:{port}/v1/metrics"\nmetrics_interval = 1\n'
    gateway = start(settings, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    until(lambda: "metrics are not exported" in gateway.output())
    request(gateway, 3)
    with Collector(port) as collector:
        until(lambda: "metrics are exported again" in gateway.output())
        until(lambda: answered(collector.pushes[-1]) == 5)
        gateway.stop()
    lines = [line for line in gateway.output().splitlines() if "metrics" in line]
    assert len([line for line in lines if " metrics are " in line]) == 2


def test_the_end_waits_for_a_collector_for_a_bounded_time(start, collector):
    gateway = start(to(collector, 3_600))
    collector.hold()
    try:
        gateway.stop()
        assert "the last metrics are lost: they were not exported within 2 s" in gateway.output()
        assert "supervisor: stopped" in gateway.output()
    finally:
        collector.release()


def test_an_exporter_that_fails_does_not_end_the_gateway(monkeypatch, caplog):
    """As older versions of the SDK do where one of their variables is wrong."""

    class Exporter:
        def __init__(self, config: Config):
            raise ValueError("brotli is not a valid Compression")

    async def work() -> None:
        config = Config(metrics_endpoint="http://127.0.0.1:9", metrics_interval=1)
        supervisor = SimpleNamespace(config=config.model_copy(update={"metrics_interval": 0.01}))
        push = Push(supervisor)
        await eventually(lambda: "the metrics were not pushed" in caplog.text)
        assert not push._task.done()
        await push.stop()
        # The first push may as well be the last one.
        caplog.clear()
        await Push(supervisor).stop()
        assert "the metrics were not pushed" in caplog.text

    monkeypatch.setattr(otlp, "Exporter", Exporter)
    asyncio.run(work())


def test_without_the_setting_nothing_is_imported(start, collector):
    gateway = start("metrics_interval = 1\n", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    request(gateway, 1)
    assert not imported(gateway)
    gateway.stop()
    assert "metrics are" not in gateway.output()
    one = start(to(collector))
    until(lambda: imported(one))


@pytest.mark.parametrize("endless", [b"Content-Length: 9000000000\r\n\r\n", b"X-More: "])
def test_a_collector_whose_answer_has_no_end_is_pushed_to_again(monkeypatch, caplog, endless):
    """Neither its body is read, nor is its header waited for."""
    monkeypatch.setattr(push, "LONGEST", 0.5)
    served: list[int] = []

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + endless)
        try:
            with suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"x" * 100)
                    await writer.drain()
                    await asyncio.sleep(0.02)
        finally:
            writer.transport.abort()

    async def work() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = Config(metrics_endpoint=url, metrics_interval=1)
        config = config.model_copy(update={"metrics_interval": 0.01})
        supervisor = SimpleNamespace(
            config=config, children=[], totals=dict, started=0.0, ready=True
        )
        pushes = Push(supervisor)
        await eventually(lambda: len(served) > 2)
        await pushes.stop()
        server.close()

    monkeypatch.setattr(push, "families", lambda *_: [])
    monkeypatch.setattr(push.About, "of", lambda *_: SimpleNamespace(started=0.0))
    asyncio.run(work())
    late = "metrics are not exported: the collector took longer than 0.5 s" in caplog.text
    assert late == endless.startswith(b"X")

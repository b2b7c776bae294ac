"""Traces: one id from the sender to the task's log, and spans that a collector receives."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config.strategies import STRATEGIES
from tests.docs.test_documents import text
from tests.integration.deliveries import URLS, gather, keyed, run, send
from tests.support.config import route, source
from tests.support.http_client import Answer
from tests.support.otlp import Collector, Span
from tests.support.stack import Server, free_port
from tests.support.waiting import until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENDERS = f"00-{TRACE}-{PARENT}-01"
STEPS = "verify", "publish", "confirm", "answer"
QUEUE = "traced"
#: What docs/tracing.md shows, with tasks that tell what reaches them.
APP = """
import os
import time

@app.task(name="traced.run", bind=True)
def run(self, query, headers, body):
    log.info("this is %s", body)
    time.sleep(float(query.get("seconds", 0)))
    webhook = delivery()
    return {
        "header": self.request.get("traceparent"),
        "delivery": webhook.traceparent,
        "trace": webhook.trace_id,
    }

@app.task(name="traced.fail")
def fail(query, headers, body):
    raise ValueError("a secret of the task")

@app.task(name="traced.further")
def further(query, headers, body):
    log.info("further %s", body)
"""
ROUTES = (
    URLS
    + """\
journal = 100
log_requests = true
"""
    + source("lab", "gitlab", secrets="of these tests only")
    + route("/run/{name}", "traced.run", queue="traced")
    + route("/fail", "traced.fail", queue="traced")
    + route("/signed", "traced.run", source="lab", queue="traced")
    + route("/accept", "traced.run", queue="traced", answer="accept")
    + route("/late", "traced.run", queue="nobody-consumes-traced", deadline=0.5)
    + route("/unroutable", "traced.run", queue="nobody-made-traced", declare=False)
    + keyed("/once", "traced.run", queue="traced", idempotency_scope="route", deadline=30)
    + route(
        "/both", "traced.run", queue="traced", also=[{"task": "traced.further", "queue": "traced"}]
    )
)


@pytest.fixture(scope="module")
def worker(stack, rabbitmq, redis_server, collector, tmp_path_factory) -> Server:
    """A worker of the app in docs/tracing.md, started by the command that is there."""
    document = text("docs/tracing.md")
    (shown,) = re.findall(r"```python\n(.*?)```", document, re.S)
    (command,) = re.findall(r"^opentelemetry-instrument celery (.*)$", document, re.M)
    variables = dict(re.findall(r"(OTEL_\w+)=(\S+)", document.split("```sh\n")[1].split("```")[0]))
    home = tmp_path_factory.mktemp("traced")
    shown = shown.replace("amqp://...", rabbitmq.url).replace("redis://...", redis_server.url)
    (home / "shop.py").write_text(shown + APP)
    argv = [str(Path(sys.executable).with_name("opentelemetry-instrument")), "celery"]
    return stack.spawn(
        "worker",
        [*argv, *command.replace("orders", QUEUE).split(), "-c", "2", "-l", "INFO"],
        env={
            "PATH": str(Path(sys.executable).parent),
            **variables,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        },
        cwd=home,
        ready="ready.",
    )


@pytest.fixture(scope="module")
def start(start_gateway, worker) -> Callable[..., Server]:
    """Start a gateway with more settings and variables."""

    def start(settings: str, strategy: str = "pika", **env: str) -> Server:
        env = {"OTEL_BSP_SCHEDULE_DELAY": "100", **env}
        return start_gateway(f"{settings}\n{ROUTES}", f"--strategy={strategy}", env=env)

    return start


@pytest.fixture(scope="module")
def gateway(start: Callable[..., Server], collector: Collector) -> Server:
    """One that exports all spans."""
    return start(f'trace_sample = 1\ntrace_endpoint = "{collector.url}"')


def ask(gateway: Server, target: str, body: str = "hello", *headers: str, **options: Any) -> Answer:
    return run(send(gateway, target, body, *headers, **options))


def ids(answer: Answer) -> tuple[str, str]:
    """Return the ids of the trace and the span that an answer tells."""
    found = re.fullmatch("00-([0-9a-f]{32})-([0-9a-f]{16})-01", answer.headers["traceresponse"])
    return found[1], found[2]


def imported(gateway: Server) -> bool:
    """Has a process of the gateway mapped a library that comes with OpenTelemetry's exporter?"""
    maps = (Path(f"/proc/{process.pid}/maps").read_text() for process in gateway.family())
    return any("google/_upb" in each for each in maps)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_id_from_the_sender_to_the_tasks_log(start, collector, worker, strategy):
    settings = f'trace_sample = 1\ntrace_endpoint = "{collector.url}"\ntrace_service = "hooks"'
    gateway = start(settings, strategy)
    # A trace of its own for each strategy.
    trace = f"{list(STRATEGIES).index(strategy) + 1:02x}{TRACE[2:]}"

    body = f"delivery by {strategy}"
    answer = ask(
        gateway, f"/run/{strategy}?key=secret", body, f"traceparent: 00-{trace}-{PARENT}-00"
    )

    assert answer.status == 200
    given = f"00-{trace}-{ids(answer)[1]}-01"
    assert answer.headers["traceresponse"] == given
    told = json.loads(answer.body)
    assert told == {"header": given, "delivery": given, "trace": trace}
    until(lambda: f"trace {trace}: this is {body}" in worker.output())
    until(lambda: f" trace={trace}" in gateway.output())
    line = next(each for each in gateway.output().splitlines() if f" trace={trace}" in each)
    spans = collector.of(trace, "POST /run/{name}", *STEPS, "run/traced.run")
    server, publish = spans["POST /run/{name}"], spans["publish"]
    assert (server.service, server.kind, server.error) == ("hooks", "server", False)
    assert (server.parent_id, server.span_id) == (PARENT, ids(answer)[1])
    delivery, task = (server.attributes.pop(f"gateway.{it}.id") for it in ("delivery", "task"))
    assert f" delivery={delivery} " in line and answer.headers["x-delivery-id"] == delivery
    assert server.attributes == {
        "http.request.method": "POST", "http.route": "/run/{name}",
        "http.response.status_code": 200, "url.path": f"/run/{strategy}",
        "client.address": "127.0.0.1",
    }  # fmt: skip
    size = publish.attributes.pop("messaging.message.body.size")
    assert size > len(body)
    assert publish.attributes == {
        "messaging.system": "rabbitmq", "messaging.operation.name": "publish",
        "messaging.operation.type": "send", "messaging.destination.name": QUEUE,
        "messaging.rabbitmq.destination.routing_key": QUEUE, "messaging.message.id": task,
        "celery.task_name": "traced.run",
    }  # fmt: skip
    assert publish.kind == "producer"
    own = [span for span in spans.values() if span.service == "hooks"]
    assert {span.parent_id for span in own} == {PARENT, server.span_id}
    assert all(server.start <= span.start <= span.end <= server.end for span in own)
    # The worker's is of Celery's own instrumentation.
    consumer = spans["run/traced.run"]
    assert (consumer.service, consumer.kind) == ("shop", "consumer")
    assert consumer.parent_id == server.span_id
    assert consumer.attributes["messaging.message.id"] == task
    gateway.stop()
    assert "exported" not in gateway.output()


def test_a_request_without_a_trace_begins_one(gateway, collector):
    first, second = ask(gateway, "/run/a"), ask(gateway, "/run/a")
    assert ids(first)[0] != ids(second)[0]
    assert collector.of(ids(first)[0], "POST /run/{name}")["POST /run/{name}"].parent_id == ""


@pytest.mark.parametrize(
    ("request_line", "status", "name", "error"),
    [
        (("GET", "/nowhere-%FF"), 400, "GET", "bad-request"),
        (("POST", "/nowhere/" + "x" * 5000), 404, "POST", "not-found"),
        (("BREW", "/fail"), 405, "HTTP /fail", "method-not-allowed"),
        (("POST", "/signed"), 401, "POST /signed", "unverified"),
        (("POST", "/fail"), 502, "POST /fail", "task-failed"),
        (("POST", "/unroutable"), 503, "POST /unroutable", "unroutable"),
        (("POST", "/late"), 504, "POST /late", "deadline-passed"),
        (("GET", "/results/c2VjcmV0"), 404, "GET /results/", "not-found"),
    ],
)
def test_an_error_is_told_by_its_type(gateway, collector, request_line, status, name, error):
    method, target = request_line
    answer = ask(gateway, target, method=method)

    assert answer.status == status
    span = collector.of(ids(answer)[0], name)[name]
    told = span.attributes
    assert (told["http.response.status_code"], told["error.type"]) == (status, error)
    assert span.error == (status >= 500)
    assert len(told["url.path"]) <= 255
    assert "c2VjcmV0" not in str(span) and "a secret" not in str(span)
    assert told.get("http.request.method_original") == ("BREW" if method == "BREW" else None)


def test_what_a_sender_writes_spoils_no_export(gateway, collector):
    secret = "X-Gitlab-Token: of these tests only"
    event = "X-Gitlab-Event: Push\x80 Hook"
    answer = ask(gateway, "/signed", "{}", secret, event)

    assert answer.status == 200
    told = collector.of(ids(answer)[0], "POST /signed")["POST /signed"].attributes
    assert told["gateway.source"] == "lab"
    assert told["gateway.event"].startswith("Push")


def test_a_sender_that_leaves_is_told(gateway, collector):
    sender = f"traceparent: 00-{'e' * 32}-{PARENT}-00"
    assert ask(gateway, "/run/a?seconds=3", "gone", sender, patience=1) is None
    told = collector.of("e" * 32, "POST /run/{name}")["POST /run/{name}"].attributes
    assert told["error.type"] == "client-gone"
    assert "http.response.status_code" not in told


async def test_a_later_try_says_which_task_it_waits_for(gateway, collector):
    key = "Idempotency-Key: traced"
    parents = [f"traceparent: 00-{digit * 32}-{PARENT}-00" for digit in "cd"]

    once = (send(gateway, "/once?seconds=1", "joined", parent, key) for parent in parents)
    answers = await gather(*once)

    # Both get the answer of one task, and each its own ids.
    assert answers[0].body == answers[1].body
    assert [ids(answer)[0] for answer in answers] == ["c" * 32, "d" * 32]
    names = "POST /once", "claim", "wait"
    found = [collector.of(trace * 32, *names) for trace in "cd"]
    joined = [spans for spans in found if spans["POST /once"].attributes.get("gateway.joined")]
    (ran,) = (spans for spans in found if spans not in joined)
    (other,) = joined
    task = ran["POST /once"].attributes["gateway.task.id"]
    assert other["wait"].attributes == {"gateway.task.id": task, "gateway.joined": True}
    assert "publish" in ran and "publish" not in other
    # A try after that gets the kept answer, in its own trace.
    third = await send(gateway, "/once?seconds=1", "joined", key)
    assert third.body == answers[0].body
    assert ids(third)[0] not in ("c" * 32, "d" * 32)


def test_further_tasks_are_in_the_trace(gateway, collector, worker):
    trace = ids(ask(gateway, "/both", "two tasks"))[0]
    until(lambda: f"trace {trace}: further two tasks" in worker.output())
    spans = collector.of(trace, "POST /both", "publish further tasks", "run/traced.further")
    assert spans["run/traced.further"].parent_id == spans["POST /both"].span_id


def test_a_replay_is_in_the_trace_of_the_first_task(gateway, collector, worker, urls, tmp_path):
    answer = ask(gateway, "/accept", "replayed")
    trace, span = ids(answer)
    assert answer.status == 202
    spans = collector.of(trace, "POST /accept", "run/traced.run")
    assert "wait" not in spans
    delivery = spans["POST /accept"].attributes["gateway.delivery.id"]
    config = tmp_path / "gateway.toml"
    config.write_text(ROUTES)
    argv = ["deliveries", "replay", delivery, *urls, "--config", str(config)]
    until(lambda: main(argv) == 0)

    def runs() -> list[Span]:
        mine = [span for span in list(collector.spans) if span.trace_id == trace]
        return [span for span in mine if span.service == "shop"]

    until(lambda: len(runs()) == 2)
    assert {each.parent_id for each in runs()} == {span}


def test_a_stranger_does_not_decide_what_is_exported(start, collector, worker):
    gateway = start(f'trace_sample = 0\ntrace_endpoint = "{collector.url}"')
    answer = ask(gateway, "/run/a", "unsampled", f"traceparent: {SENDERS}")
    given = answer.headers["traceresponse"]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", given)
    # The worker is told not to export, either.
    assert json.loads(answer.body)["header"] == given
    gateway.stop()
    assert [span for span in collector.spans if span.trace_id == TRACE] == []


def test_trusted_senders_decide_what_is_exported(start, collector):
    settings = f'trace_sample = 0\ntrace_follow = true\ntrace_endpoint = "{collector.url}"'
    gateway = start(settings)
    flags = {"a": "01", "b": "00", "9": "03", "8": "fe"}
    for digit, flag in flags.items():
        ask(gateway, "/run/a", "x", f"traceparent: 00-{digit * 32}-{PARENT}-{flag}")
    untraced = ask(gateway, "/run/a")
    assert untraced.headers["traceresponse"].endswith("-00")
    gateway.stop()
    found = {span.trace_id for span in collector.spans if span.name == "POST /run/{name}"}
    assert {digit for digit in flags if digit * 32 in found} == {"a", "9"}


def test_without_the_setting_nothing_changes_and_nothing_is_imported(start, gateway):
    off = start("", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    answer = ask(off, "/run/a", "x", f"traceparent: {SENDERS}")
    assert "traceresponse" not in answer.headers
    assert json.loads(answer.body) == {
        "header": None, "delivery": SENDERS, "trace": TRACE
    }  # fmt: skip
    until(lambda: f" trace={TRACE} " in off.output())  # the sender's
    assert (imported(off), imported(gateway)) == (False, True)


def test_the_variables_of_opentelemetry_count(start, collector):
    exporter = {"ENDPOINT": collector.url, "HEADERS": "x-tenant=lab"}
    env = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in exporter.items()}
    gateway = start("trace_sample = 1", **env, OTEL_SERVICE_NAME="by variable")
    trace = ids(ask(gateway, "/run/a"))[0]
    assert collector.of(trace, "POST /run/{name}")["POST /run/{name}"].service == "by variable"
    path, headers = next(each for each in collector.exports if each[1].get("x-tenant"))
    assert (path, headers["x-tenant"]) == ("/v1/traces", "lab")


def test_a_collector_that_is_gone_delays_nothing_and_is_told_once(start):
    away = free_port()
    env = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5"}
    gateway = start(f'trace_sample = 1\ntrace_endpoint = "http://127.0.0.1:{away}"', **env)
    told = "spans are not exported, and may be lost"
    answers = [ask(gateway, "/run/a", f"gone {number}") for number in range(20)]
    until(lambda: told in gateway.output())
    answers += [ask(gateway, "/run/a", f"gone {number}") for number in range(20)]
    assert {answer.status for answer in answers} == {200}
    gateway.stop()
    lines = [line for line in gateway.output().splitlines() if "span" in line]
    assert len([line for line in lines if told in line]) == 1
    # Nothing of the library's, and what is left at the end is given up.
    others = [line for line in lines if told not in line and "the last spans are lost" not in line]
    assert others == []
    assert "drained: all requests are answered" in gateway.output()


def test_a_slow_collector_delays_nothing_and_gets_the_rest_at_the_end(start, collector):
    gateway = start(f'trace_sample = 1\ntrace_endpoint = "{collector.url}"')
    ask(gateway, "/run/a", "before")
    with collector.held():
        first = ask(gateway, "/run/a", "slow")
        assert collector.asked.wait(30)
        others = [ask(gateway, "/run/a", f"slow {number}") for number in range(20)]
        assert {answer.status for answer in others} == {200}
    gateway.stop()
    for answer in (first, *others):
        collector.of(ids(answer)[0], "POST /run/{name}")


def test_the_end_waits_for_a_collector_for_a_bounded_time(start, collector):
    gateway = start(f'trace_sample = 1\ntrace_endpoint = "{collector.url}"')
    with collector.held():
        ask(gateway, "/run/a", "held")
        assert collector.asked.wait(30)
        ask(gateway, "/run/a", "left behind")
        gateway.stop()
        assert "the last spans are lost: they were not exported within 2 s" in gateway.output()
        assert "drained: all requests are answered" in gateway.output()


def test_a_collector_that_comes_back_is_told(start, stack):
    with Collector() as later:
        url, number = later.url, int(later.url.rpartition(":")[2])
    gateway = start(f'trace_sample = 1\ntrace_endpoint = "{url}"', OTEL_EXPORTER_OTLP_TIMEOUT="1")
    ask(gateway, "/run/a")
    until(lambda: "spans are not exported" in gateway.output())
    with Collector(number):
        ask(gateway, "/run/a")
        until(lambda: "spans are exported again" in gateway.output())

"""What traces need and what is set for them; tests/integration/test_tracing.py has the rest."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from gateway.celery_message import Message
from gateway.cli.configuration import configure
from gateway.config.redaction import Redaction
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request
from gateway.errors import ConfigError
from gateway.tracing.trace import PUBLISH, Trace
from gateway.tracing.tracer import Spans, Tracer


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http"])
def test_without_its_extra_a_gateway_does_not_start(missing, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    configure(Namespace(config=None))
    monkeypatch.setenv("GATEWAY_TRACE_SAMPLE", "0.01")
    with pytest.raises(ConfigError) as error:
        configure(Namespace(config=None))
    assert error.value.problems == [
        "trace_sample: no opentelemetry: pip install 'CHECKOUT-OR-WHEEL[otel]'",
    ]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example.com/", "https://collector.example.com/v1/traces"),
        ("https://example.com/otlp/v1/traces", "https://example.com/otlp/v1/traces"),
        (None, None),
    ],
)
def test_the_path_of_otlp_is_added_where_there_is_none(given, used):
    assert Config(trace_endpoint=given).trace_endpoint == used


@pytest.mark.parametrize("error", ["", "refused"])
def test_a_late_answer_has_a_span_in_its_deliverys_trace(error):
    about = {"http.route": "/slack", "gateway.task.id": "t"}

    span = Spans(Resource({}), "rabbitmq").late(5, 6, "POST", about, error, (1_000, 2_000))

    assert (span.name, span.kind.name) == ("POST late answer", "CLIENT")
    assert (span.context.trace_id, span.parent.span_id) == (5, 6)
    assert (span.start_time, span.end_time) == (1_000, 2_000)
    assert span.attributes.get("error.type", "") == error
    assert span.attributes["http.route"] == "/slack"
    assert span.status.is_unset == (not error)


@pytest.mark.parametrize(
    ("traceparent", "number"),
    [
        (f"00-{5:032x}-{6:016x}-01", 1),
        (f"00-{5:032x}-{6:016x}-00", 0),
        # Of its sender, from while nothing was traced: a later version may have further fields.
        (f"cc-{5:032x}-{6:016x}-01-what-comes", 1),
    ],
)
def test_a_late_answer_is_in_the_trace_of_any_traceparent(traceparent, number, monkeypatch):
    tracer, spans = Tracer(Config(trace_sample=1)), []
    monkeypatch.setattr(tracer._processor, "on_end", spans.append)

    tracer.late(traceparent, "POST", {}, "", 1)

    assert [(each.context.trace_id, each.parent.span_id) for each in spans] == [(5, 6)] * number
    tracer._processor.shutdown()


def test_a_value_that_is_not_kept_is_in_no_span():
    # Given a delivery whose event is not to be kept, and names its queue,
    body, text = b'{"type": "mark-4711"}', "mark-4711"
    delivery = Delivery("d", "/p", {}, {}, "", {}, body, "", 0.0, "partner", text)
    redacted = Redaction(["json:/type"]).of(delivery)
    request = Request("POST", "/p", "", {}, body, "", 0.0, 0.0)
    call = b'[[{}, {}, ""], {}, {}]'
    trace = Trace("5" * 32, "6" * 16, "", sampled=True)
    trace.begin(PUBLISH)
    traced: Any = Namespace(
        trace=trace, request=request, kept_request=redacted.request(request), status=200,
        delivery_id="d", task_id="t", joined=False, path="/p", recorded=redacted.message,
        error_type="",
        message=Message("t", "shop.run", f"orders.{text}", call, delivery.table(False)),
    )  # fmt: skip

    # when its spans are made,
    spans = list(Spans(Resource({}), "rabbitmq").make(traced, 2, 0))

    # then none of them has it.
    assert [each.name for each in spans] == ["POST /p", "publish"]
    assert text not in repr([each.attributes.items() for each in spans])
    assert spans[1].attributes["messaging.destination.name"] == "orders.[redacted]"
    assert spans[1].attributes["messaging.message.body.size"] == len(call)

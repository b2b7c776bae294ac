"""Counters in shared memory: added up, exposed, and not lost with their process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from gateway.metrics import BUCKETS, HELP, STATUSES, Metrics, add_up, expose

ROUTES = ["/a", '/"quoted\\"']

# A child that counts on the descriptor it is given, says so, and never ends by itself.
CHILD = """\
import signal, sys
from gateway.metrics import Metrics
metrics = Metrics(int(sys.argv[1]), sys.argv[2:])
metrics.answered("/a", 200, 0.02)
metrics.add("gateway_in_flight", 3)
metrics.add("gateway_messages_published_total", 7)
print("counted", flush=True)
signal.pause()
"""


@pytest.fixture
def counters():
    """Make counters and their file; all are closed at the end."""
    made = []

    def make(routes=ROUTES):
        made.append(Metrics.create(routes))
        return made[-1]

    yield make
    for metrics, file in made:
        metrics.close()
        file.close()


def parsed(text: str) -> dict[str, float]:
    """Read Prometheus' text format as strictly as its own parser does."""
    samples, described = {}, []
    for line in text.splitlines():
        if line.startswith("#"):
            kind, name, rest = re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line).groups()
            described.append((kind, name))
            assert kind == "HELP" or rest in ("counter", "gauge", "histogram")
        else:
            name, value = re.fullmatch(
                r'(\w+(?:\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\})?) (\S+)', line
            ).groups()
            assert name not in samples
            samples[name] = float(value)
    assert described == [(kind, name) for name in HELP for kind in ("HELP", "TYPE")]
    return samples


def test_parent_reads_what_a_child_counts_and_keeps_it_when_that_is_killed(counters):
    # Given a child that counts in a file of the parent's,
    metrics, file = counters()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file.fileno()), *ROUTES],
        pass_fds=[file.fileno()],
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"counted\n"
        assert metrics.get("gateway_in_flight") == 3

        # when it is killed,
        os.kill(child.pid, signal.SIGKILL)

    # then its counts are there, and only its gauges are not.
    totals = metrics.totals(alive=False)
    assert totals["gateway_messages_published_total", ""] == 7
    assert totals["gateway_requests_total", 'route="/a",status="200"'] == 1
    assert totals["gateway_request_seconds_sum", 'route="/a"'] == 0.02
    assert ("gateway_in_flight", "") not in totals


def test_processes_are_added_up_whatever_their_routes(counters):
    (one, _), (other, _) = counters(["/a"]), counters(["/a", "/b"])
    for metrics in (one, other):
        metrics.answered("/a", 200, 0)
        metrics.add("gateway_in_flight")
    other.answered("/b", 503, 0)

    total = add_up([one.totals(), other.totals(), {}])

    assert total["gateway_requests_total", 'route="/a",status="200"'] == 2
    assert total["gateway_requests_total", 'route="/b",status="503"'] == 1
    assert total["gateway_in_flight", ""] == 2


def test_statuses_and_routes_that_nobody_named_are_counted_together(counters):
    metrics, _ = counters()
    metrics.answered("/a", 418, 0)
    metrics.answered("/a", 299, 0)
    metrics.answered("", 404, 0)

    samples = parsed(expose(metrics.totals()))

    assert samples['gateway_requests_total{route="/a",status="other"}'] == 2
    assert samples['gateway_requests_total{route="",status="404"}'] == 1


def test_exposition_can_be_read_back(counters):
    metrics, _ = counters()
    latencies = [0.0, *BUCKETS, 99.0]
    for seconds in latencies:
        metrics.answered(ROUTES[1], 200, seconds)
    metrics.add("gateway_connections_open", 2)
    metrics.add("gateway_connections_open", -1)
    metrics.add("gateway_messages_published_total", 123_456_789)

    samples = parsed(expose(metrics.totals()))

    quoted = 'route="/\\"quoted\\\\\\""'
    assert samples[f'gateway_requests_total{{{quoted},status="200"}}'] == len(latencies)
    assert samples["gateway_connections_open"] == 1
    assert samples["gateway_messages_published_total"] == 123_456_789
    # A bucket counts all that is not above its bound.
    bucket = f"gateway_request_seconds_bucket{{{quoted},le="
    bounds = {f'{bucket}"{b}"}}': i + 2 for i, b in enumerate(BUCKETS)}
    assert {name: samples[name] for name in bounds} == bounds
    assert samples[f'{bucket}"+Inf"}}'] == len(latencies)
    assert samples[f"gateway_request_seconds_count{{{quoted}}}"] == len(latencies)
    total = samples[f"gateway_request_seconds_sum{{{quoted}}}"]
    assert total == pytest.approx(sum(latencies))


def test_each_route_has_latencies_of_its_own(counters):
    (one, _), (other, _) = counters(["/a", "/b"]), counters(["/b"])
    one.answered("/a", 200, 0.02)
    one.answered("/b", 200, 2.0)
    other.answered("/b", 503, 3.0)

    samples = parsed(expose(add_up([one.totals(), other.totals()])))

    name = "gateway_request_seconds"
    assert samples[f'{name}_count{{route="/a"}}'] == 1
    assert samples[f'{name}_bucket{{route="/b",le="2.5"}}'] == 1
    assert samples[f'{name}_count{{route="/b"}}'] == 2
    assert samples[f'{name}_sum{{route="/b"}}'] == 5
    assert not any('route=""' in series for series in samples)


def test_plain_series_are_there_from_the_beginning_and_labelled_ones_are_not(counters):
    metrics, _ = counters()
    samples = parsed(expose(metrics.totals()))
    labelled = {"gateway_requests_total", "gateway_request_seconds"}
    assert HELP.keys() - labelled <= samples.keys()
    assert not any(name.startswith(tuple(labelled)) for name in samples)
    assert parsed(expose({})) == {}  # no child lives yet


def test_file_has_room_for_every_route(counters):
    routes = [f"/{n}" for n in range(300)]
    metrics, file = counters(routes)
    for route in routes:
        for status in STATUSES:
            metrics.answered(route, status, 0)
    assert os.fstat(file.fileno()).st_size >= 8 * len(metrics.series)
    assert all(
        value == 1
        for (name, labels), value in metrics.totals().items()
        if name == "gateway_requests_total" and 'route=""' not in labels
    )


def test_what_every_process_sees_alike_is_not_added_up(counters):
    name = "gateway_state_memory_ratio"
    parts = [counters()[0] for _ in range(2)]
    for metrics, value in zip(parts, (0.25, 0.5), strict=True):
        metrics.set(name, value)

    assert add_up(metrics.totals() for metrics in parts)[name, ""] == 0.5

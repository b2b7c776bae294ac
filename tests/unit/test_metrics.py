"""Counters in shared memory: added up, exposed, and not lost with their process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from gateway.admin.exposition import PARENT, About, expose
from gateway.metrics import BUCKETS, FORM, HEAD, HELP, STATUSES, Metrics, Series
from gateway.process.counters import Counters, add_up

ABOUT = About(version="1.2", strategy="pika", ready=True, processes=2, started=7.5)
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


class Counted:
    """What a child counts, and what its parent reads."""

    def __init__(self, routes: list[str]):
        self.counters = Counters()
        self.metrics = Metrics(self.counters.fileno(), routes)
        self.totals = self.counters.totals


@pytest.fixture
def counting():
    """Make what counts and what is counted; all are closed at the end."""
    made = []

    def make(routes=ROUTES):
        made.append(Counted(routes))
        return made[-1]

    yield make
    for counted in made:
        counted.metrics.close()
        counted.counters.close()


def requests(route: str, status: object) -> Series:
    return "gateway_requests_total", (("route", route), ("status", str(status)))


def parsed(exposed: bytes) -> dict[str, float]:
    """Read Prometheus' text format as strictly as its own parser does."""
    samples, described = {}, []
    for line in exposed.decode().splitlines():
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
    names = (*PARENT, *HELP)
    assert described == [(kind, name) for name in names for kind in ("HELP", "TYPE")]
    return samples


def test_parent_reads_what_a_child_counts_and_keeps_it_when_that_is_killed():
    # Given a child that counts in a file of the parent's,
    counters = Counters()
    assert counters.totals() == {}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(counters.fileno()), *ROUTES],
        pass_fds=[counters.fileno()],
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"counted\n"
        assert counters.totals()["gateway_in_flight", ()] == 3

        # when it is killed,
        os.kill(child.pid, signal.SIGKILL)

    # then its counts are there, and only its gauges are not.
    totals = counters.totals(alive=False)
    assert totals["gateway_messages_published_total", ()] == 7
    assert totals[requests("/a", 200)] == 1
    assert totals["gateway_request_seconds_sum", (("route", "/a"),)] == 0.02
    assert ("gateway_in_flight", ()) not in totals
    counters.close()


def test_a_child_with_other_metrics_than_its_parents_is_read_by_their_names(counting, monkeypatch):
    # Given a child of a version in which a metric is new, others have gone, and so has a status,
    monkeypatch.setattr(
        "gateway.metrics._PLAIN", ("gateway_new_total", "gateway_clients_gone_total")
    )
    monkeypatch.setattr("gateway.metrics.STATUSES", (200, 299, 0))
    one = counting()
    monkeypatch.undo()
    other = counting()
    for each in (one, other):
        each.metrics.answered("/a", 200, 0.02)
        each.metrics.add("gateway_clients_gone_total")
    one.metrics.add("gateway_new_total", 5)

    # when both are added up,
    total = add_up([one.totals(), other.totals()])

    # then what both have is the sum, and what is not known here is not shown.
    assert total[requests("/a", 200)] == total["gateway_clients_gone_total", ()] == 2
    samples = parsed(expose(total, ABOUT))
    assert samples["gateway_clients_gone_total"] == 2
    assert samples["gateway_messages_published_total"] == 0
    assert not any(name.startswith("gateway_new") for name in samples)


def test_a_file_of_another_form_is_told_once_and_left_out(caplog):
    counters = Counters()
    os.pwrite(counters.fileno(), HEAD.pack(FORM.replace(b"1", b"9"), 5, 5) + bytes(100), 0)

    assert counters.totals() == counters.totals() == {}

    (record,) = caplog.records
    assert "another version" in record.getMessage()
    counters.close()


def test_processes_are_added_up_whatever_their_routes(counting):
    one, other = counting(["/a"]), counting(["/a", "/b"])
    for each in (one, other):
        each.metrics.answered("/a", 200, 0)
        each.metrics.add("gateway_in_flight")
    other.metrics.answered("/b", 503, 0)

    total = add_up([one.totals(), other.totals(), {}])

    assert total[requests("/a", 200)] == 2
    assert total[requests("/b", 503)] == 1
    assert total["gateway_in_flight", ()] == 2


def test_statuses_and_routes_that_nobody_named_are_counted_together(counting):
    counted = counting()
    counted.metrics.answered("/a", 418, 0)
    counted.metrics.answered("/a", 299, 0)
    counted.metrics.answered("", 404, 0)

    samples = parsed(expose(counted.totals(), ABOUT))

    assert samples['gateway_requests_total{route="/a",status="other"}'] == 2
    assert samples['gateway_requests_total{route="",status="404"}'] == 1


def test_exposition_can_be_read_back(counting):
    counted = counting()
    latencies = [0.0, *BUCKETS, 99.0]
    for seconds in latencies:
        counted.metrics.answered(ROUTES[1], 200, seconds)
    counted.metrics.add("gateway_connections_open", 2)
    counted.metrics.add("gateway_connections_open", -1)
    counted.metrics.add("gateway_messages_published_total", 123_456_789)

    samples = parsed(expose(counted.totals(), ABOUT))

    quoted = 'route="/\\"quoted\\\\\\""'
    assert samples[f'gateway_requests_total{{{quoted},status="200"}}'] == len(latencies)
    assert samples["gateway_connections_open"] == 1
    assert samples["gateway_messages_published_total"] == 123_456_789
    # A bucket counts all that is not above its bound.
    name = "gateway_request_seconds"
    bounds = {f'{name}_bucket{{le="{b}",{quoted}}}': i + 2 for i, b in enumerate(BUCKETS)}
    assert {series: samples[series] for series in bounds} == bounds
    assert samples[f'{name}_bucket{{le="+Inf",{quoted}}}'] == len(latencies)
    assert samples[f"{name}_count{{{quoted}}}"] == len(latencies)
    assert samples[f"{name}_sum{{{quoted}}}"] == pytest.approx(sum(latencies))


def test_each_route_has_latencies_of_its_own(counting):
    one, other = counting(["/a", "/b"]), counting(["/b"])
    one.metrics.answered("/a", 200, 0.02)
    one.metrics.answered("/b", 200, 2.0)
    other.metrics.answered("/b", 503, 3.0)

    samples = parsed(expose(add_up([one.totals(), other.totals()]), ABOUT))

    name = "gateway_request_seconds"
    assert samples[f'{name}_count{{route="/a"}}'] == 1
    assert samples[f'{name}_bucket{{le="2.5",route="/b"}}'] == 1
    assert samples[f'{name}_count{{route="/b"}}'] == 2
    assert samples[f'{name}_sum{{route="/b"}}'] == 5
    assert not any('route=""' in series for series in samples)


def test_plain_series_are_there_from_the_beginning_and_labelled_ones_are_not(counting):
    samples = parsed(expose(counting().totals(), ABOUT))
    labelled = {"gateway_requests_total", "gateway_request_seconds", "gateway_dynamic_queues"}
    assert HELP.keys() - labelled <= samples.keys()
    assert samples['gateway_info{strategy="pika",version="1.2"}'] == samples["gateway_ready"] == 1
    assert (samples["gateway_processes"], samples["gateway_start_time_seconds"]) == (2, 7.5)
    assert not any(name.startswith(tuple(labelled)) for name in samples)
    alone = parsed(expose({}, ABOUT))  # no child lives yet
    assert {name.partition("{")[0] for name in alone} == PARENT.keys()


def test_file_has_room_for_every_route(counting):
    routes = [f"/{n}" for n in range(300)]
    counted = counting(routes)
    for route in routes:
        for status in STATUSES:
            counted.metrics.answered(route, status, 0)
    assert all(
        value == 1
        for (name, labels), value in counted.totals().items()
        if name == "gateway_requests_total" and labels[0] != ("route", "")
    )


def test_what_every_process_sees_alike_is_not_added_up(counting):
    name = "gateway_state_memory_ratio"
    parts = [counting() for _ in range(2)]
    for counted, value in zip(parts, (0.25, 0.5), strict=True):
        counted.metrics.set(name, value)

    assert add_up(counted.totals() for counted in parts)[name, ()] == 0.5


def test_the_processes_of_two_versions_may_have_different_bounds():
    name = "gateway_request_seconds"
    old = [("0.1", 1), ("1.0", 0), ("+Inf", 1)]
    new = [("0.1", 1), ("0.5", 1), ("1.0", 1), ("60.0", 1), ("+Inf", 0)]
    totals = add_up_buckets(name, old, new)

    found = parsed(expose(totals, ABOUT))

    cumulative = {"0.1": 2, "0.5": 3, "1.0": 4, "60.0": 5, "+Inf": 6}
    assert {le: found[f'{name}_bucket{{le="{le}",route="/a"}}'] for le in cumulative} == cumulative
    assert found[f'{name}_sum{{route="/a"}}'] == 9


def add_up_buckets(name: str, *processes: list[tuple[str, int]]) -> dict[Series, float]:
    totals: dict[Series, float] = {(f"{name}_sum", (("route", "/a"),)): 9.0}
    for buckets in processes:
        for bound, count in buckets:
            series = f"{name}_bucket", (("route", "/a"), ("le", bound))
            totals[series] = totals.get(series, 0) + count
    return totals


def test_a_label_that_only_another_version_knows_is_added_up():
    name = "gateway_requests_total"
    known = (("route", "/a"), ("status", "200"))
    totals = {
        (name, known): 2.0,
        (name, (*known, ("method", "PUT"))): 3.0,
        ("gateway_request_seconds_sum", (("route", "/no-buckets"),)): 4.0,
    }

    found = parsed(expose(totals, ABOUT))

    assert found[f'{name}{{route="/a",status="200"}}'] == 5
    assert not any("/no-buckets" in series for series in found)


def test_dynamic_queues_are_counted_by_route():
    metrics = Metrics(dynamic=["/a", "/b"])
    metrics.set_queues("/a", 3)
    assert metrics.count(("gateway_dynamic_queues", (("route", "/a"),))) == 3
    assert metrics.count(("gateway_dynamic_queues", (("route", "/b"),))) == 0
    metrics.close()

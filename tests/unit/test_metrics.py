"""Counters in shared memory: added up, exposed, and not lost with their process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from gateway import __version__
from gateway.admin.families import expose, families, of_parent
from gateway.errors import GatewayError, RequestError
from gateway.history.gateways import Difference
from gateway.metric_table import (
    BUCKETS,
    COUNTER,
    ERRORS,
    HISTOGRAM,
    LAG,
    METHODS,
    METRICS,
    OTHER,
    PARENT,
    PUBLISHED,
    RABBITMQ,
    RECONNECTS,
    REQUESTS,
    SENT,
    UNVERIFIED,
    Metric,
)
from gateway.metrics import EXEMPLARS, FORM, HEAD, Metrics
from gateway.process.counters import Counters, Totals, add_up
from tests.support.requests import total

CHILD_THAT_SERVES = SimpleNamespace(serves=lambda checks, path: True)
OWN = of_parent(
    SimpleNamespace(
        config=SimpleNamespace(strategy="pika"),
        draining=False,
        restarts=3,
        started=5,
        reload_failed=True,
    ),
    [(CHILD_THAT_SERVES, {}), (CHILD_THAT_SERVES, None)],
    [Difference("other", "clock", "")],
)
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
ROUTES = ["/a", '/"quoted\\"']
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

# A child that counts on the descriptor it is given, says so, and never ends by itself.
CHILD = """\
import signal, sys
from gateway.metrics import Metrics
metrics = Metrics(int(sys.argv[1]), sys.argv[2:])
print("ready", flush=True)
sys.stdin.readline()
metrics.answered("/a", "POST", 200, 0.02)
metrics.add("gateway_in_flight", 3)
metrics.add("gateway_clients_gone_total", 7)
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


@pytest.fixture
def counted(counting) -> Counted:
    return counting()


def exposed(totals: Totals) -> str:
    """Expose `totals`, in a form that Prometheus accepts."""
    data, content_type = expose(families(totals, OWN), "")
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    text = data.decode()
    described = re.findall(r"^# (HELP|TYPE) (\w+)", text, re.M)
    assert described == [(kind, name) for name in (*PARENT, *METRICS) for kind in ("HELP", "TYPE")]
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "metrics"], input=data, check=True)
    return text


def answers(totals: Totals, **labels: object) -> float:
    """Return how many requests with these labels were answered."""
    names = {"route": "http_route", "method": "http_request_method"}
    told = {names.get(name, "http_response_status_code"): value for name, value in labels.items()}
    return total(exposed(totals), f"{REQUESTS}_count", **told)


def test_parent_reads_what_a_child_counts_and_keeps_it_when_that_is_killed():
    # Given a child that counts in a file of the parent's, and whose series are new to the parent,
    counters = Counters()
    assert counters.totals() == Totals()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(counters.fileno()), *ROUTES],
        pass_fds=[counters.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"ready\n"
        assert answers(counters.totals()) == 0
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"counted\n"
        assert counters.totals().values["gateway_in_flight", (), ()] == [3]

        # when it is killed,
        os.kill(child.pid, signal.SIGKILL)

    # then its counts are there, and only its gauges are not.
    totals = counters.totals(alive=False)
    assert totals.values["gateway_clients_gone_total", (), ()] == [7]
    assert answers(totals, route="/a", method="POST", status=200) == 1
    assert total(exposed(totals), f"{REQUESTS}_sum", http_route="/a") == 0.02
    assert ("gateway_in_flight", (), ()) not in totals.values
    counters.close()


def test_a_child_with_other_metrics_than_its_parents_is_read_by_their_names(counting, monkeypatch):
    # Given a child of a version in which a metric is new, others have gone, and one has another
    # label and other bounds,
    changed = {
        "gateway_new_total": Metric(COUNTER, "New."),
        "gateway_clients_gone_total": METRICS["gateway_clients_gone_total"],
        REQUESTS: Metric(HISTOGRAM, "", ("http_route", "http_request_method", "status_class")),
    }
    monkeypatch.setattr("gateway.metrics.METRICS", changed)
    monkeypatch.setattr("gateway.metrics.BUCKETS", (0.1, 99.0))
    monkeypatch.setattr("gateway.metrics._SUM", 3)
    one = counting()
    one.metrics.answered("/a", "POST", 200, 0.05)
    one.metrics.add("gateway_clients_gone_total")
    one.metrics.add("gateway_new_total", 5)
    monkeypatch.undo()
    other = counting()
    other.metrics.answered("/a", "POST", 200, 0.02)
    other.metrics.add("gateway_clients_gone_total")

    # when both are added up,
    totals = add_up([one.totals(), other.totals()])

    # then what both have is the sum, and what is not known here is not shown.
    text = exposed(totals)
    assert total(text, "gateway_clients_gone_total") == 2
    assert total(text, f"{REQUESTS}_count") == 2
    assert total(text, f"{REQUESTS}_count", http_response_status_code=200) == 1
    assert total(text, f"{REQUESTS}_bucket", le="99.0", http_response_status_code="") == 1
    assert total(text, "gateway_results_unclaimed_total") == 0
    assert "gateway_new" not in text


def test_a_file_of_another_form_is_told_once_and_left_out(caplog):
    counters = Counters()
    os.pwrite(counters.fileno(), HEAD.pack(FORM.replace(b"2", b"9"), 5, 5) + bytes(100), 0)

    assert counters.totals() == counters.totals() == Totals()

    (record,) = caplog.records
    assert "another version" in record.getMessage()
    counters.close()


def test_a_series_is_read_once_all_of_its_description_is_there(counted):
    # Given a series that was counted, and a byte of its description that has not arrived,
    counted.metrics.answered("/a", "POST", 299, 0.02, TRACE)
    at = counted.metrics.map.find(b'"299"')
    counted.metrics.map[at] = 0
    assert answers(counted.totals()) == 0
    assert counted.totals().exemplars == {}

    # when that arrives, then it is read.
    counted.metrics.map[at] = ord('"')
    assert answers(counted.totals(), status=299) == 1
    assert [one.trace for one in counted.totals().exemplars.values()] == [TRACE]


def test_processes_are_added_up_whatever_their_routes(counting):
    one, other = counting(["/a"]), counting(["/a", "/b"])
    for each in (one, other):
        each.metrics.answered("/a", "POST", 200, 2.0)
        each.metrics.add("gateway_in_flight")
    other.metrics.answered("/b", "POST", 503, 3.0)

    totals = add_up([one.totals(), other.totals(), Totals()])

    assert answers(totals, route="/a", status=200) == 2
    assert answers(totals, route="/b", status=503) == 1
    text = exposed(totals)
    assert total(text, f"{REQUESTS}_bucket", http_route="/a", le="2.5") == 2
    assert total(text, f"{REQUESTS}_bucket", http_route="/b", le="2.5") == 0
    assert total(text, f"{REQUESTS}_sum", http_route="/a") == 4
    assert totals.values["gateway_in_flight", (), ()] == [2]


def test_each_status_is_counted_and_unknown_methods_are_counted_together(counted):
    for status in (201, 299, 418):
        counted.metrics.answered("/a", "POST", status, 0)
    for method in ("BREW", "post", "-", "X" * 1000):
        counted.metrics.answered("", method, 405, 0)
    counted.metrics.answered("", "GET", 404, 0)

    totals = counted.totals()

    assert [answers(totals, route="/a", status=status) for status in (201, 299, 418)] == [1, 1, 1]
    assert answers(totals, route="", method=OTHER, status=405) == 4
    assert answers(totals, route="", method="GET", status=404) == answers(totals, route="") - 4 == 1


def test_series_are_bounded_and_what_has_no_room_is_counted_together(counting):
    # Given more answers of different kinds than there is room for,
    counted = counting(["/a"])
    methods = sorted(METHODS)
    kinds = [(method, status) for status in range(100, 600) for method in methods]
    for method, status in kinds:
        counted.metrics.answered("/a", method, status, 0.5)
        counted.metrics.answered("/a", "NOT-" + method, status, 0.5)
    counted.metrics.count(ERRORS, "full")

    # then none is lost, and neither are later ones.
    totals = counted.totals()
    assert answers(totals, route="/a", status=100) == 2 * len(methods)
    assert answers(totals) == 2 * len(kinds)
    together = answers(totals, route=OTHER, method=OTHER, status=OTHER)
    assert together > len(kinds)
    assert total(exposed(totals), ERRORS) == 1
    counted.metrics.answered("/a", "PUT", 599, 0)
    assert answers(counted.totals(), route=OTHER) == together + 1


def test_there_is_room_for_what_clients_can_cause(counting):
    # Given routes with long paths, each with a source,
    routes = [f"/{n}/" + "\N{SNOWMAN}" * 80 for n in range(100)]
    counted = counting(routes)
    types = [cls.type for cls in subclasses(RequestError)]

    # when each answers what it can, and verification fails in each way,
    for route in ("", *routes):
        for method in (*METHODS, "BREW"):
            counted.metrics.answered(route, method, 405, 0)
        for status in (200, 202, 204, 400, 401, 408, 409, 413, 415, 429, 500, 502, 503, 504):
            counted.metrics.answered(route, "POST", status, 0)
        for error in ("unverified", "bad-request"):
            counted.metrics.count(UNVERIFIED, route, "github", error)
    for name in types:
        counted.metrics.count(ERRORS, name)
        counted.metrics.observe(0.1, PUBLISHED, *RABBITMQ, name)

    # then all are counted apart.
    assert OTHER not in {
        value
        for (_, labels, _), numbers in counted.totals().values.items()
        for label, value in labels
        if any(numbers) and label != "http_request_method"
    }


def subclasses(cls: type) -> set[type]:
    assert issubclass(cls, GatewayError)
    return {cls}.union(*(subclasses(each) for each in cls.__subclasses__()))


def test_exposition_can_be_read_back(counted):
    latencies = [0.0, *BUCKETS, 99.0]
    for seconds in latencies:
        counted.metrics.answered(ROUTES[1], "POST", 200, seconds)
    counted.metrics.add("gateway_connections_open", 2)
    counted.metrics.add("gateway_connections_open", -1)
    counted.metrics.add("gateway_clients_gone_total", 123_456_789)

    text = exposed(counted.totals())

    assert total(text, "gateway_connections_open") == 1
    assert total(text, "gateway_clients_gone_total") == 123_456_789
    # A bucket counts all that is not above its bound.
    for i, bound in enumerate(BUCKETS):
        assert total(text, f"{REQUESTS}_bucket", le=bound, http_route=ROUTES[1]) == i + 2
    assert total(text, f"{REQUESTS}_bucket", le="+Inf") == len(latencies)
    assert total(text, f"{REQUESTS}_count", http_route=ROUTES[1]) == len(latencies)
    assert total(text, f"{REQUESTS}_sum") == pytest.approx(sum(latencies))


def test_plain_series_are_there_from_the_beginning_and_labelled_ones_are_not(counting):
    text = exposed(counting().totals())
    plain = {name for name, metric in METRICS.items() if metric.known or not metric.labels}
    told = set(re.findall(r"^(\w+)[{ ]", text, re.M))
    assert told == {*PARENT, *plain - {LAG}, *(f"{LAG}_{s}" for s in ("bucket", "count", "sum"))}
    assert total(text, "gateway_build_info", version=__version__, strategy="pika") == 1
    assert re.search(r'^gateway_build_info{python="3\.[\d.]+\w*"', text, re.M)
    parent = {name: total(text, name) for name in [*PARENT][1:]}
    assert [*parent.values()] == [1, 2, 3, 1, 5, 1]
    assert total(text, "gateway_differing", kind="clock") == 1
    alone = exposed(Totals())  # no child lives yet
    assert set(re.findall(r"^(\w+)[{ ]", alone, re.M)) == PARENT.keys()


def test_what_every_process_sees_alike_is_not_added_up(counting):
    name = "gateway_state_memory_ratio"
    parts = [counting() for _ in range(2)]
    for counted, value in zip(parts, (0.25, 0.5), strict=True):
        counted.metrics.set(name, value)

    assert add_up(counted.totals() for counted in parts).values[name, (), ()] == [0.5]


def test_the_processes_of_two_versions_may_have_different_bounds():
    old = {(LAG, (), ("0.1", "1.0", "+Inf")): [1.0, 0.0, 1.0, 5.0]}
    new = {(LAG, (), ("0.1", "0.5", "1.0", "60.0", "+Inf")): [1.0, 1.0, 1.0, 1.0, 0.0, 4.0]}
    gauge = {(LAG, (), ()): [7.0]}  # it was no histogram

    text = exposed(add_up([Totals(old), Totals(new), Totals(gauge)]))

    cumulative = {"0.1": 2, "0.5": 3, "1.0": 4, "60.0": 5, "+Inf": 6}
    assert {le: total(text, f"{LAG}_bucket", le=le) for le in cumulative} == cumulative
    assert total(text, f"{LAG}_sum") == 9


def test_a_label_that_only_another_version_knows_is_added_up():
    known = (("error_type", "full"),)
    totals = Totals({(ERRORS, known, ()): [2.0], (ERRORS, (*known, ("route", "/a")), ()): [3.0]})

    assert total(exposed(totals), ERRORS, error_type="full") == 5


def test_dynamic_queues_are_counted_by_route(counted):
    counted.metrics.set_queues("/a", 3)
    assert total(exposed(counted.totals()), "gateway_dynamic_queues", http_route="/a") == 3


def test_only_later_connections_are_reconnections(counted):
    for _ in range(3):
        counted.metrics.connected("broker")
    counted.metrics.connected("results")

    text = exposed(counted.totals())

    assert total(text, "gateway_broker_connections_total") == 3
    assert total(text, RECONNECTS, server="broker") == total(text, RECONNECTS) == 2


def test_a_message_that_was_published_is_counted_with_its_error(counted):
    counted.metrics.published(RABBITMQ, 0.0)
    counted.metrics.published(RABBITMQ, 0.0, "rejected")

    text = exposed(counted.totals())

    assert total(text, SENT, messaging_system="rabbitmq", messaging_operation_name="publish") == 2
    assert total(text, f"{PUBLISHED}_count", error_type="") == 1
    assert total(text, f"{PUBLISHED}_count", error_type="rejected") == 1


def exemplars(totals: Totals) -> dict[tuple[str, str], dict]:
    """Return the exemplars that OpenMetrics shows, by route and bucket."""
    data, content_type = expose(families(totals, OWN), OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text")
    return {
        (sample.labels["http_route"], sample.labels["le"]): sample.exemplar
        for family in openmetrics.text_string_to_metric_families(data.decode())
        for sample in family.samples
        if sample.exemplar
    }


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*;;, text/plain; version=x", "text/plain; version=0.0.4"),
        (OPEN_METRICS, OPEN_METRICS),
        ("application/openmetrics-text; version=x", OPEN_METRICS),
        # What Prometheus asks for.
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/"
         "openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.1",
         OPEN_METRICS),
    ],
)  # fmt: skip
def test_whatever_is_asked_for_is_one_of_two_formats(accept, name):
    _, content_type = expose(families(Totals(), OWN), accept)
    assert content_type == f"{name}; charset=utf-8"


def test_openmetrics_has_the_last_trace_of_each_bucket(counting):
    one, other = counting(), counting()
    for counted in (one, other):
        counted.metrics.answered("/a", "POST", 200, 0.02, "f" * 32)
        counted.metrics.answered("/a", "POST", 200, 0.3)
    other.metrics.answered("/a", "POST", 200, 0.021, TRACE)
    other.metrics.answered("/a", "POST", 200, 2.0, "e" * 32)

    totals = add_up([other.totals(), one.totals()])

    found = exemplars(totals)
    assert {key: (e.labels["trace_id"], e.value) for key, e in found.items()} == {
        ("/a", "0.025"): (TRACE, 0.021),
        ("/a", "2.5"): ("e" * 32, 2.0),
    }
    assert TRACE not in exposed(totals)


def test_exemplars_are_bounded(counting):
    counted = counting(["/a"] * 10)
    for status in range(100, 600):
        counted.metrics.answered("/a", "POST", status, 0.02, TRACE)
    assert len(counted.totals().exemplars) == EXEMPLARS


def test_an_exemplar_that_is_half_written_is_left_out(counted):
    counted.metrics.answered("/a", "POST", 200, 0.02, TRACE)
    counted.metrics.answered("/a", "POST", 200, 0.2, "e" * 32)
    counted.metrics.map[counted.metrics.map.find(bytes.fromhex(TRACE))] = 0

    assert [one.trace for one in counted.totals().exemplars.values()] == ["e" * 32]


def test_what_has_grown_is_told_once(counted):
    counted.metrics.answered("/a", "POST", 200, 0.02)
    counted.metrics.set("gateway_in_flight", 3)  # a gauge

    ((name, labels, grown),) = counted.counters.grown()
    assert (name, labels) == (REQUESTS, ("/a", "POST", "200"))
    assert (len(grown), sum(grown[:-1]), grown[-1]) == (len(BUCKETS) + 2, 1, 0.02)
    assert counted.counters.grown() == []

    counted.metrics.answered("/a", "POST", 502, 0.5)
    counted.metrics.answered("/a", "POST", 200, 0.02)
    counted.metrics.count(ERRORS, "task-failed")
    grown = {labels: sum(more) for _, labels, more in counted.counters.grown()}
    assert grown == {
        ("/a", "POST", "200"): 1.02, ("/a", "POST", "502"): 1.5, ("task-failed",): 1,
    }  # fmt: skip
    unused = Counters()
    assert unused.grown() == []
    unused.close()


def test_what_is_not_used_of_the_file_takes_no_memory(counting):
    counted = counting([f"/{n}" for n in range(500)])
    assert counted.totals().values
    taken = os.fstat(counted.counters.fileno())
    assert taken.st_blocks * 512 < taken.st_size // 100

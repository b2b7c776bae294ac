"""What the first page makes of the history."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from gateway.admin.pages import overview
from gateway.admin.pages.asked import Look
from gateway.admin.pages.failures import before
from gateway.admin.pages.overview import (
    Overview,
    line,
    marked,
    most_waiting,
    not_done,
    share,
    summed,
)
from gateway.admin.pages.view import Shared
from gateway.admin.pages.widgets import bars
from gateway.history.gateways import Line
from gateway.history.ring import FIRST, STATUSES, WIDTH, Slot
from gateway.journal.groups import About, Group


def slot(time: float, seconds: float = 60.0, **statuses: int) -> Slot:
    counts = [0] * WIDTH
    for name, number in statuses.items():
        counts[STATUSES.index(name.removeprefix("s"))] = number
    counts[FIRST + 4] = sum(statuses.values())  # in 25 ms
    return Slot(time, seconds, counts)


def test_a_share_is_known_only_where_there_were_requests():
    assert share(slot(0)) is None and not_done(slot(0, 0.0)) == 0.0
    some = slot(0, 30.0, s2xx=95, s4xx=3, s502=2)
    assert share(some) == 0.95 and not_done(some) == 10.0


def test_a_line_has_a_gap_where_nothing_is_known_and_one_point_is_seen():
    drawn = line([1.0, 2.0, None, 2.0, 0.0], 2.0, filled=True)
    assert drawn.count("<polyline") == drawn.count("<polygon") == 2
    assert 'points="100.0,28.0 300.0,1.0"' in drawn
    assert 'points="300.0,1.0 400.0,1.0"' in line([None, 2.0, None, None, None], 2.0)
    assert line([None, None], 0.0) == "" and "nan" not in line([0.0, 0.0], 0.0)


def test_the_plots_have_one_axis_and_scales_of_their_own():
    slots = [slot(60.0 * at, s2xx=60, s503=at) for at in range(9)] + [slot(540.0, 0.0)]
    plots = overview._plots(slots)
    assert plots["axis"] == [0.0, 200.0, 400.0, 600.0]
    # The second slot of ten has one place in bars and lines, and so has what is marked there.
    assert '<rect class="bad" x="100.00"' in bars(plots["counts"], "", overview._WIDTH)
    assert 'points="50.0,56 50.0,7.4 150.0,' in plots["rate"] and 'x1="150.0"' in marked([0.15])
    assert plots["most"] == 68 / 60 and plots["highest"] == 8.0 and 0.02 < plots["slow"] < 0.03
    assert [kind for kind, _ in plots["counts"]] == ["bad", "warn"]


def test_all_is_well_since_the_last_failure_as_far_as_it_is_known():
    slots = [slot(0.0, 0.0), slot(10.0, s2xx=1), slot(20.0, s504=2), slot(30.0), slot(40.0)]
    assert overview._well_since(slots) == (30.0, 2)
    assert overview._well_since(slots[:2]) == (10.0, 0)


def test_a_warning_is_said_with_its_remedy_below():
    said = overview._said("no worker consumes <it>: start `one`")
    assert said == "<b>No worker consumes &lt;it&gt;</b><br>start one"
    assert overview._said("odd") == "<b>Odd</b>"


def test_gateways_are_summed_by_what_they_tell():
    north = Line(name="north", rate=2.0, failed=3, refused=3, p50=0.1, p99=2.0, waiting=1.5,
                 received=[1.0, None, 3.0])  # fmt: skip
    south = Line(name="south", rate=1.0, seconds=30.0, p50=0.2, received=[1.0, None])
    found = summed([north, south])
    assert (found["rate"], found["rates"], found["failed"]) == (3.0, [2.0, 0], 6.0)
    assert (found["p50"], found["p99"], found["waiting"]) == (0.2, 2.0, 1.5)
    assert found["fails"] and round(found["share"], 4) == round(1 - 6 / 150, 4)
    idle = summed([Line(name="idle")])
    assert (idle["share"], idle["p50"], idle["rates"], idle["fails"]) == (None, None, [0.0], False)


def test_where_the_most_messages_wait_is_known_only_where_somebody_told():
    assert most_waiting(None) == most_waiting(Look(0.0)) == {}
    found = most_waiting(Look(0.0, queues={"a": (2, 1), "b": (5, 0)}))
    assert found == {"waiting": 7, "most": "b", "its": 5, "idle": True}
    assert most_waiting(Look(0.0, queues={"a": (0, 1)}))["most"] == ""


def test_starts_are_marked_in_the_plots_and_told_where_a_group_began():
    assert marked([]) == "" and 'x1="500.0" x2="500.0"' in marked([0.0, 0.5])
    own, other = Line(name="one", started=7_000.0), Line(name="two", version="1.1", started=9_000.0)
    gateways: Any = SimpleNamespace(own=own, lines=[own, other])
    history: Any = SimpleNamespace(starts=[(1_000.0, "1.0"), (7_000.0, "1.1")])
    supervisor: Any = None
    found = Shared(supervisor, history, gateways).starts
    assert found == [(1_000.0, "one 1.0"), (7_000.0, "one 1.1"), (9_000.0, "two 1.1")]

    def group(first: float, again: float = 0.0) -> Group:
        times = int(first * 1000), int(first * 1000)
        return Group(About("failed", "/", "t", "E", ""), 1, *times, [], [], again=int(again * 1000))

    assert before(group(7_180.0), found) == "That was 3 min after one 1.1 had started."
    assert before(group(500.0, 9_002.0), found) == "It came back 2 s after two 1.1 had started."
    assert before(group(5_000.0), found) == before(group(999.0), found) == ""


async def test_failures_of_a_route_are_told_once_and_those_of_another_route_as_well():
    about = About("failed", "/orders/paid", "t", "E", "")
    groups = [Group(about, 9, 0, 0, [], [0] * 23 + [9])]

    async def get() -> tuple[list[Group], str, str]:
        return groups, "", ""

    view: Any = SimpleNamespace(shared=SimpleNamespace(groups=SimpleNamespace(get=get)))
    view.shared.gateways = SimpleNamespace(differences=[])
    view._groups = partial(Overview._groups, view)
    row = {"source": "", "last": slot(0, s2xx=80, s502=20), "failed": [20], "refused": [0]}
    rows = [{**row, "path": path} for path in ("/", "/orders", "/orders/paid")]
    found = await Overview._troubles(view, [], rows)
    assert [each.what for each in found] == [
        "<b>E</b> in /orders/paid", "<b>20 % of /</b> fail", "<b>20 % of /orders</b> fail",
    ]  # fmt: skip

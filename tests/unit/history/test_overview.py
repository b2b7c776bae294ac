"""What the first page makes of the history."""

from __future__ import annotations

from gateway.admin.pages import overview
from gateway.admin.pages.overview import line, not_done, share
from gateway.history.ring import FIRST, STATUSES, WIDTH, Slot


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
    assert 'points="0.0,28.0 250.0,1.0"' in drawn
    assert 'points="250.0,1.0 375.0,1.0"' in line([None, 2.0, None, None, None], 2.0)
    assert line([None, None], 0.0) == "" and "nan" not in line([0.0, 0.0], 0.0)


def test_the_plots_have_one_axis_and_scales_of_their_own():
    slots = [slot(60.0 * at, s2xx=60, s503=at) for at in range(9)] + [slot(540.0, 0.0)]
    plots = overview._plots(slots)
    assert plots["axis"] == [0.0, 180.0, 360.0, 540.0]
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

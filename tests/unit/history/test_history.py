"""The history counts by the second, for long, in little memory, and over restarts."""

from __future__ import annotations

import logging
import random
import tracemalloc
import zlib

import pytest

import gateway.history.history
from gateway.history.history import ALL, OTHERS, RANGES, ROUTES, History
from gateway.history.ring import MILLISECONDS, WIDTH, Ring, Slot, packed, total, unpacked
from gateway.metric_table import BUCKETS, LATE, RECONNECTS, REQUESTS
from gateway.process.counters import Growth

T0 = 1_700_000_100.0  # seconds since the epoch; a slot of each range begins then
LIMIT = 8_000_000  # bytes


class World:
    """What processes count, and a clock, which only `go` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, paths: list[str]):
        self.paths = paths
        self.now = T0
        self.grown: list[Growth] = []
        self.history = self.another()
        monkeypatch.setattr(gateway.history.history, "time", lambda: self.now)

    def another(self) -> History:
        def grown() -> list[Growth]:
            found, self.grown = self.grown, []
            return found

        return History(grown, lambda: self.paths)

    def answer(self, route: str, status: int, number: int = 1, seconds: float = 0.02) -> None:
        row = [0.0] * (len(BUCKETS) + 2)
        row[sum(bound < seconds for bound in BUCKETS)] = number
        row[-1] = number * seconds
        self.grown.append((REQUESTS, (route, "POST", str(status)), row))

    def fail_later(self, number: int, state: str = "failed", answer: str = "accepted") -> None:
        self.grown.append((LATE, (state, answer), [number]))

    def go(self, seconds: int, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.now += step
            self.history.tick(self.now, step)


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch, ["/a", "/b"])


def test_counts_are_exact_while_small_and_nearly_so_when_large():
    for count in [*range(2_048), *(random.Random(1).randrange(1 << 40) for _ in range(2_000))]:
        bits = packed(count)
        assert 0 <= bits < 1 << 16 and abs(unpacked(bits) - count) <= count / 2_048
        assert count >= 2_048 or unpacked(bits) == count


def test_what_comes_is_seen_in_each_range_with_statuses_latencies_and_waits(world):
    for second in range(20):
        world.answer("/a", 200, 99, 0.02)
        world.answer("/a", (401, 404, 502, 500, 503)[second % 5], 1, 4.0)
        world.go(1)

    for name, (step, length) in RANGES.items():
        slots = world.history.read(name)
        known = [slot for slot in slots if slot.seconds]
        assert len(slots) in (length, length - 1) and len(known) == max(20 // step, 1)
        whole = total(known)
        assert (whole.received, whole.refused, whole.failed) == (2_000, 8, 12)
        assert whole.rate == 100 and whole.waiting == pytest.approx(0.99 * 2 + 4, rel=1e-3)
        assert 0.01 < whole.quantile(0.5) < 0.025 and 2.5 < whole.quantile(0.995) <= 5
        assert world.history.read(name, "/b")[-1].received == 0
    (last,) = world.history.read("10m")[-1:]
    assert last.time == world.now - 1 and Slot(0, 0, [0] * WIDTH).quantile(0.5) is None
    five = world.history.read("10m", group=5)[-1]
    assert five.time % 5 == 0 and five.received == 500


def test_a_large_count_does_not_hide_small_ones_that_follow(world):
    world.answer("/a", 200, 1_000_000)
    world.go(1)
    for _ in range(250):
        world.answer("/a", 200, 100)
        world.go(1)
    assert abs(world.history.read("14d")[-1].received - 1_025_000) <= 1_025_000 / 2_048


def test_routes_beyond_the_most_and_what_is_no_route_are_together(world):
    world.paths = [f"/{number}" for number in range(ROUTES + 2)]
    for path in [*world.paths, "", "/results/", "_OTHER"]:
        world.answer(path, 200)
    world.go(1)

    assert world.history.routes == world.paths[:ROUTES]
    assert world.history.read("6h", OTHERS)[-1].received == 5
    assert world.history.read("6h", ALL)[-1].received == ROUTES + 3

    # One that the configuration has no more makes room.
    world.paths = [*world.paths[1:ROUTES], "/new"]
    world.answer("/new", 200)
    world.go(1)
    assert world.history.routes == world.paths
    assert world.history.read("6h", OTHERS)[-1].received == 6
    assert world.history.read("6h", "/new")[-1].received == 1


def test_accepted_deliveries_that_fail_later_have_failed(world):
    world.answer("/a", 202, 10)
    world.fail_later(2)
    world.fail_later(3, "succeeded")
    world.fail_later(4, answer="error")  # its sender knows
    world.grown.append((REQUESTS, ("/a", "POST", "502"), [1.0] * 7))  # of another version
    world.grown.append((REQUESTS, ("/a", "POST", "502", "1.1"), [1.0] * (len(BUCKETS) + 2)))
    world.grown.append((RECONNECTS, ("broker",), [1.0]))
    world.go(1)
    (last,) = world.history.read("10m")[-1:]
    assert (last.received, last.failed) == (10, 2)


def test_what_was_not_watched_is_not_known(world):
    world.go(10)
    world.now += 30  # the machine slept, or the gateway was down
    world.go(10)
    seconds = [slot.seconds for slot in world.history.read("10m")[-50:]]
    assert seconds == [1] * 10 + [0] * 30 + [1] * 10
    assert total(world.history.read("14d")[-2:]).seconds == 20

    world.answer("/a", 200)
    world.now -= 25  # the clock was set back
    world.go(1)
    assert [slot.seconds for slot in world.history.read("10m")[-26:]] == [1] * 10 + [0] * 15 + [1]
    assert world.history.read("10m")[-1].received == 1

    world.now += 100 * 86_400
    world.go(1)
    assert total(world.history.read("14d")).seconds == 1


def test_what_is_counted_late_does_not_seem_to_have_come_at_once(world):
    for _ in range(30):
        world.answer("/a", 200, 100)
        world.go(1)
    world.answer("/a", 200, 3_000)
    world.go(30, 30.0)  # the machine was busy

    assert total(world.history.read("10m")[-60:]).rate == 100
    assert max(slot.rate for slot in world.history.read("10m")) == 100


def test_a_usual_value_is_known_after_some_days(world):
    for day in range(6):
        assert (world.history.usual(lambda slot: slot.rate) is None) == (day < 4)
        for _ in range(288):  # a day
            at_this_hour = abs((world.now - T0 + 43_200) % 86_400 - 43_200) < 3_600
            world.answer("/a", 200, (day + 1) * 300 if at_this_hour else 30)  # 1, 2, ... a second
            world.go(300, 300)
    assert world.history.usual(lambda slot: slot.rate) == 3.5  # each hour has half of two days


def test_a_restart_takes_up_what_the_file_has(world, tmp_path, caplog):
    file = tmp_path / "history"
    world.answer("/a", 200, 7)
    world.go(3)
    world.history.starts = [(T0, "0.9")]
    world.history.saving(file)()
    before = world.history.read("6h", "/a")

    world.history = world.another()
    world.history.load(file)
    assert world.history.read("6h", "/a") == before and world.history.routes == ["/a"]
    assert world.history.starts == [(T0, "0.9")]
    world.answer("/a", 200, 4)
    world.go(1)
    assert world.history.read("6h", "/a")[-1].received == 11

    caplog.set_level(logging.WARNING)
    whole = file.read_bytes()
    other = world.another()
    others = [zlib.compress(each + b"\n") for each in (b"{}", b"null", b"[" * 100_000)]
    cut = (b"", b"text", whole[:-9], whole[:50] + b"x" + whole[51:])
    for wrong in (*cut, *others, whole + b"x" * 9):
        caplog.clear()
        file.write_bytes(wrong)
        other.load(file)
        assert other.routes == [] or wrong.startswith(whole)
        assert len(caplog.messages) == (not wrong.startswith(whole))
    world.another().load(tmp_path / "none")
    caplog.clear()
    other.saving(tmp_path / "none" / "history")()
    assert "not kept over a restart" in caplog.text


def test_a_file_of_another_form_is_not_used(world, tmp_path, caplog, monkeypatch):
    file = tmp_path / "history"
    world.history.saving(file)()
    monkeypatch.setattr(gateway.history.history, "_FORM", [2])
    world.another().load(file)
    assert "it is of another form" in caplog.text


def test_all_of_it_takes_less_than_eight_megabytes(world, tmp_path):
    world.paths = [f"/{number}" for number in range(50)]
    tracemalloc.start()
    try:
        world.history = world.another()
        for _ in range(3):
            for number, path in enumerate(world.paths):
                world.answer(path, (200, 401, 502)[number % 3], 5_000, number / 10)
            world.go(1)
        world.history.read("14d", group=12)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 6_000_000 < held < LIMIT and peak < LIMIT + 1_000_000


def test_a_ring_s_milliseconds_are_a_column_of_their_own():
    ring = Ring(1, 4)
    ring.add(9.0, 1.0, {ALL: [float(column == MILLISECONDS) * 70_000 for column in range(WIDTH)]})
    (*_, last) = ring.read(ALL, 9.0)
    assert last.received == 0 and abs(last.waiting - 70) < 0.05

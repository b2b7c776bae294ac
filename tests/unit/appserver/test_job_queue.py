"""The socket of a pool's process: what is not read is taken back, and what is long is a file."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from appserver.job_queue import LARGEST, LATE, QUICK, JobQueue, Quick
from appserver.processes import Places


@pytest.fixture
def jobs():
    jobs = JobQueue()
    yield jobs
    jobs._reader.close()
    jobs._writer.close()


@pytest.mark.parametrize("size", [0, 1, LARGEST, LARGEST + 1, 20 * LARGEST])
def test_a_job_of_any_size_arrives(jobs, size):
    jobs.send(7, LATE, b"x" * size)
    number, flags, data = jobs.receive()
    assert (number, flags & LATE, data) == (7, LATE, b"x" * size)


def test_what_was_not_read_is_taken_back(jobs):
    for number in range(1, 5):
        jobs.send(number, 0, b"x" * number * LARGEST)
    assert jobs.receive()[0] == 1
    assert jobs.take() == [2, 3, 4]
    with pytest.raises(BlockingIOError):
        jobs.receive(socket.MSG_DONTWAIT)


def test_the_sentinel_is_not_taken_back(jobs):
    jobs.send(1, 0, b"")
    jobs.put(None)
    assert jobs.take() == [1]
    with pytest.raises(EOFError):
        jobs.receive()


def test_a_full_queue_refuses(jobs):
    with pytest.raises(BlockingIOError):
        for number in range(1_000):
            jobs.send(number, 0, b"x" * LARGEST)


def test_both_sides_see_what_runs(jobs):
    assert jobs.running == (0, 0.0)
    jobs.begin(3, 1.5)
    assert jobs.running == (3, 1.5)
    jobs.forget()
    assert jobs.running == (0, 0.0)


def test_quick_is_what_does_not_take_long_on_average():
    quick = Quick()
    assert "task" not in quick
    quick.add("task", 0.0)
    assert "task" in quick
    for _ in range(50):
        quick.add("task", 0.0)
    quick.add("task", 60.0)  # once, as where the machine lets it wait
    assert "task" in quick
    for _ in range(5):
        quick.add("task", 2 * QUICK)
    assert "task" not in quick


@pytest.fixture
def places():
    room = SimpleNamespace(places=0, begun=[])

    def is_room(_request: object) -> bool:
        return len(room.begun) < room.places

    room.semaphore = Places(1, is_room)
    room.acquire = lambda request: room.semaphore.acquire(room.begun.append, request)
    return room


def test_tasks_wait_for_a_place(places):
    assert [places.acquire(name) for name in "abc"] == [True, False, False]
    places.semaphore.release()
    assert places.begun == ["a", "b"]
    places.semaphore.clear()
    assert places.semaphore.value == 1
    assert places.acquire("d")
    assert places.begun == ["a", "b", "d"]


def test_where_there_is_room_more_tasks_have_a_place(places):
    places.places = 3
    assert [places.acquire(name) for name in "abcd"] == [True, True, True, False]
    # None overtakes one that waits.
    places.places = 5
    assert not places.acquire("e")
    places.semaphore.release()
    assert places.begun == ["a", "b", "c", "d", "e"]
    for _ in range(9):
        places.semaphore.release()
    assert places.semaphore.value == 1


def test_a_semaphore_grows_and_shrinks(places):
    for name in "abc":
        places.acquire(name)
    places.semaphore.grow()
    assert places.begun == ["a", "b"]
    places.semaphore.shrink()
    places.semaphore.release()
    assert places.begun == ["a", "b"]
    places.semaphore.release()
    assert places.begun == ["a", "b", "c"]

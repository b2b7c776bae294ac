"""What a worker's main process knows of lost tasks, where RabbitMQ has taken its messages back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.worker import state

from appserver.beginnings import TIMEOUTS, RemoveBeginnings, beginnings


class Request(SimpleNamespace):
    """As much of a request as is looked at."""

    __hash__ = object.__hash__

    def __init__(self, id: str, beginning: str | None = "a", acknowledged: bool = False):
        super().__init__(id=id, name="shop.run", beginning=beginning, acknowledged=acknowledged)


@pytest.fixture
def app():
    yield SimpleNamespace(backend=None)
    state.reset_state()


def test_what_runs_counts_a_loss_and_its_end_takes_no_beginning_back(app):
    first, again, early = Request("1", None), Request("2"), Request("3", acknowledged=True)
    waiting, gone = Request("4"), Request("5")
    known = beginnings(app)
    for request in (again, early, waiting, gone):
        known.receive(request)
    state.active_requests.update((first, again, early, gone))
    del gone, request

    assert set(known.keep_all()) == {"shop.run 1", "shop.run 2"}

    assert [known.receive(Request(id)) for id in "1234"] == [0, 1, 0, 0]
    assert {one.beginning for one in (first, again, early, waiting)} == {None}
    assert RemoveBeginnings.info(None, SimpleNamespace(app=app)) == {TIMEOUTS: 1}


def test_the_losses_of_so_many_tasks_are_remembered(app, monkeypatch):
    monkeypatch.setattr("appserver.beginnings.REMEMBERED", 2)
    known = beginnings(app)
    for id in "123":
        known.count_loss(Request(id))
    assert [known.receive(Request(id)) for id in "123"] == [0, 1, 1]

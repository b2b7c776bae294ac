"""Whether a route's arguments fit its task's parameters, as `gateway check` says it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from appserver.bootsteps import PARAMETERS, TellParameters
from gateway.cli.checks import workers
from gateway.config.settings import Config
from gateway.strategies import workers as remote
from gateway.strategies.workers import Answers


def started(task):
    """Return the Celery task that runs `task`, in a worker that has started."""
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.charge", shared=False)
    def charge():
        return None

    app.tasks["shop.charge"].run = task
    TellParameters(None).create(SimpleNamespace(app=app))
    return app.tasks["shop.charge"]


def findings(config, *registered):
    """Return the findings about the tasks that a worker has told."""
    answers = Answers()
    answers.take("active_queues", {"w": [{"name": "celery"}]})
    answers.take("registered", {"w": [*registered]})
    return list(workers.judge_tasks(config, answers))


def judged(task, **route):
    """Return the findings about a route whose task is the function `task`, in a worker."""
    told = getattr(started(task), PARAMETERS)
    config = Config(routes=[{"path": "/charge", "task": "shop.charge", **route}])
    return findings(config, f"shop.charge [{PARAMETERS}={told}]")


def named(*names, **more):
    return {"kwargs": dict.fromkeys(names, "body") | more}


def test_the_worker_and_the_check_mean_the_same_attribute():
    assert remote.PARAMETERS == PARAMETERS


@pytest.mark.parametrize(
    ("task", "route"),
    [
        (lambda query, headers, body: 0, {}),
        (lambda query, headers, body, more=1: 0, {}),
        (lambda *args: 0, {}),
        (lambda order, currency="EUR": 0, {"args": ["json:/id"]}),
        (lambda order, currency="EUR": 0, {"args": ["body", "body"]}),
        (lambda order, currency="EUR": 0, named("order")),
        (lambda order, *, currency="EUR": 0, {"args": ["body"], **named("currency")}),
        (lambda order, **more: 0, named("order", "anything")),
        (lambda a, /, b: 0, {"args": ["body"], **named("b")}),
        (lambda order, x=1: 0, named("order", x={"from": "json:/x", "optional": True})),
        (lambda: 0, {"args": []}),
    ],
)
def test_arguments_that_fit(task, route):
    assert [finding.status for finding in judged(task, **route)] == ["ok"]


@pytest.mark.parametrize(
    ("task", "route", "problem"),
    [
        (lambda currency: 0, named("curency"), "it takes `currency`, and gets `curency`"),
        (lambda order, x=1: 0, named("order", "zzz"), "it does not take `zzz`, and gets `zzz`"),
        (lambda order, currency="EUR": 0, {}, "it takes at most 2 by position, and gets 3"),
        (lambda order: 0, {}, "it takes 1 by position, and gets 3"),
        (lambda order: 0, {"args": ["body"], **named("order")}, "it gets `order` twice"),
        (lambda a, b: 0, {"args": ["body"]}, "it needs `b`, and does not always get it"),
        (lambda *, a, b: 0, {"args": []}, "it needs `a` and `b`, and does not always get them"),
        (lambda a, /: 0, named("a"), "it does not take `a`, and gets `a`; it needs `a`"),
        (lambda order: 0, named(order={"from": "json:/x", "optional": True}),
         "it needs `order`, and does not always get it"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(task, route, problem):
    (finding,) = judged(task, **route)
    assert (finding.status, finding.check) == ("fail", "task shop.charge")
    assert problem in finding.problem
    assert finding.problem.startswith("w, route /charge: it ")
    assert "kwargs in the route" in finding.remedy


def test_further_tasks_are_compared_too():
    also = [{"task": "shop.charge", "queue": "celery", "args": []}]
    config = Config(routes=[{"path": "/", "answer": "accept", "also": also}], secret_key="k" * 32)
    main, charge = findings(config, "api.core.main", f"shop.charge [{PARAMETERS}=(order)]")
    assert (main.status, charge.status) == ("ok", "fail")


@pytest.mark.parametrize(
    "told", ["", " [rate_limit=1/s]", f" [{PARAMETERS}=(]", f" [{PARAMETERS}=():0\nx]"]
)
def test_what_is_not_told_is_not_compared(told):
    (finding,) = findings(Config(), f"api.core.main{told}")
    assert finding.status == "ok"


def test_a_task_without_a_signature_is_not_told():
    assert not hasattr(started(type), PARAMETERS)

"""What workers answer to questions, and what anybody else may send in their place."""

from __future__ import annotations

import pytest
from celery.app.defaults import DEFAULTS

from gateway.amqp.workers import Answers
from gateway.cli.checks.finding import WARN, fail, listed, ok
from gateway.cli.checks.worker_settings import expires, untold
from gateway.cli.checks.workers import _SINCE_5_7, LOST, THROUGHPUT, judge, judge_unseen
from gateway.config.settings import Config

QUESTIONS = ("active_queues", "registered", "active", "conf", "stats", "query_task")


def answered(**said: object) -> Answers:
    """Return what workers have answered, by the name of each question."""
    answers = Answers()
    for question, answer in said.items():
        answers.take(question, answer)
    return answers


@pytest.mark.parametrize(
    "said", [None, 5, "x", [], [None], {"w": None}, {"w": [1, {}, " "]}, {"w": {"error": "x"}}]
)
def test_nothing_that_is_answered_is_an_error(said):
    answers = answered(**dict.fromkeys(QUESTIONS, said))
    assert all(worker.settings == {} and worker.solo for worker in answers.workers.values())


@pytest.mark.parametrize("number", [10**400, -1, float("nan"), float("inf")])
def test_a_number_that_cannot_be_is_as_none(number):
    pool = {"max-concurrency": number}
    stats = {"pool": pool, "uptime": number, "prefetch_count": number, "total": {"t": number}}
    active = [{"id": "1", "name": "t", "time_start": number}]
    answers = answered(stats={"w": {**stats, "consumer_timeouts": number}}, active={"w": active})
    worker = answers.workers["w"]
    assert (worker.concurrency, worker.uptime, worker.prefetch) == (None, None, None)
    assert (worker.begun, worker.consumer_timeouts, worker.running) == (0, 0, [])


def test_lost_results_of_workers_that_share_a_name_are_added():
    answers = answered(stats={"w": {"lost_results": {"number": 3, "last": 9}}})
    answers.take("stats", {"w": {"lost_results": {"number": 2, "last": 7}}})
    answers.take("stats", {"w": {}})
    assert answers.workers["w"].lost == (5, 9)


def test_a_worker_is_complete_with_all_answers():
    answers = answered(
        active_queues={"w": [{"name": "celery"}]},
        registered={"w": ["shop.order [rate_limit=1/s]"]},
        conf={"w": {"result_backend": None}},
    )
    assert not answers.workers["w"].complete
    answers.take("stats", {"w": {"pool": {"implementation": "celery.concurrency.solo:TaskPool"}}})
    worker = answers.workers["w"]
    assert worker.complete and worker.solo and worker.tasks == {"shop.order"}
    assert answers.consuming("celery") == {"w"}


@pytest.mark.parametrize("pool", ["thread", "gevent", "eventlet", "prefork"])
@pytest.mark.parametrize("said", [None, {}, {"number": "1"}, {"number": 1, "last": "now"},
    {"number": 1, "last": 1e300}, {"number": -1}])  # fmt: skip
def test_a_worker_that_counts_no_lost_results_is_named_where_its_pool_drops_them(pool, said):
    stats = {"pool": {"implementation": f"celery.concurrency.{pool}:TaskPool"}}
    answers = answered(stats={"w": {**stats, "lost_results": said}})
    found = [one for one in judge_unseen(Config(), answers) if one.check == LOST]
    assert [one.status for one in found] == ([] if pool == "prefork" else [WARN])


BEFORE_5_7 = {"result_backend": None, "broker_heartbeat": 120}
CONF = {**BEFORE_5_7, "worker_pool_start_method": None}


@pytest.mark.parametrize(
    ("pool", "conf", "lost", "warned"),
    [
        ("gevent", CONF, None, True),
        ("eventlet", CONF, None, True),
        ("gevent", CONF, {"number": 0, "last": None}, False),  # after `appserver.setup`
        ("prefork", CONF, None, False),
        ("solo", CONF, None, False),
        ("gevent", {**CONF, "broker_heartbeat": 0}, None, False),
        ("gevent", {**CONF, "broker_heartbeat": None}, None, False),
        ("gevent", BEFORE_5_7, None, False),
        ("gevent", None, None, False),
    ],
)
def test_a_worker_that_waits_after_each_message_is_named(pool, conf, lost, warned):
    told = {} if conf is None else {"conf": {"w": conf}}
    stats = {"pool": {"implementation": f"celery.concurrency.{pool}:TaskPool"}}
    answers = answered(**told, stats={"w": {**stats, "lost_results": lost}})
    found = [one for one in judge(Config(), {}, answers) if one.check == THROUGHPUT]
    assert [one.status for one in found] == [WARN] * warned
    assert all("appserver.setup(app)" in str(one) for one in found)


def test_the_setting_that_tells_celery_5_7_is_among_its_defaults():
    assert _SINCE_5_7 in DEFAULTS


def test_lost_results_are_told_with_their_number():
    lost = {"a": {"number": 36, "last": 1e9}, "b": {"number": 0, "last": None}}
    answers = answered(stats={name: {"lost_results": each} for name, each in lost.items()})
    (found,) = (one for one in judge_unseen(Config(), answers) if one.check == LOST)
    assert str(found).startswith(
        "warn  lost results: a: 36 results since it was started,"
        " the last at 2001-09-09 01:46:40 UTC; their tasks have run; "
    )


@pytest.mark.parametrize("said", [{"error": "ValueError()"}, {}, [], None])
def test_a_worker_that_answers_an_error_in_the_place_of_its_settings_is_named(said):
    (found,) = untold(Config(), answered(conf={"a": {"result_backend": None}, "b": said}))
    assert str(found).startswith("warn  stored results: b: the settings are answered with an error")
    assert untold(Config(), Answers()) == []


@pytest.mark.parametrize(
    ("backend", "lost", "replies"),
    [
        ("redis://127.0.0.1/0", {"number": 0, "last": None}, True),  # after `appserver.setup`
        ("redis://127.0.0.1/0", None, False),
        ("appserver.reply_backend:ReplyBackend+redis://127.0.0.1/0", None, True),
        (None, {"number": 0, "last": None}, True),
        (None, None, False),
    ],
)
def test_what_shows_that_a_worker_replies(backend, lost, replies):
    answers = answered(conf={"w": {"result_backend": backend}}, stats={"w": {"lost_results": lost}})
    assert answers.workers["w"].only_replies is replies


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (300, 300), (0.5, 0.5), ("0:05:00", 300), ("1 day, 0:00:00", 86_400),
        ("2 days, 1:00:01", 176_401), (None, 0), ("soon", None),
    ],
)  # fmt: skip
def test_the_forms_of_an_expiry(value, seconds):
    assert expires({"result_expires": value}) == seconds


def test_a_finding_is_one_line_and_names_a_few():
    line = str(fail("task a\nb", f"no worker has it: {listed(['a', 'b', 'c', 'd', 'e'])}", "see"))
    assert line == "FAIL  task a?b: no worker has it: a, b, c and 2 more; see"
    assert str(ok("workers", "3 answered")) == "ok    workers: 3 answered"

"""What `gateway check` says of queues, workers and sources, by what servers have told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from pika.exceptions import ChannelClosedByBroker

from appserver.bootsteps import PARAMETERS, TellParameters
from gateway.amqp import workers as remote
from gateway.amqp.workers import Answers, Worker
from gateway.cli.checks import queues, settings, workers
from gateway.cli.checks.finding import Finding, ranged
from gateway.cli.checks.queues import Inspected, Seen
from gateway.cli.checks.worker_settings import early
from gateway.config.pointers import overlap
from gateway.config.settings import Config
from gateway.sources import SCHEMES, find

FAIR = {"path": "/", "queue": "orders", "fair_by": "remote"}
NAMES = [f"orders.fair.{number}" for number in range(16)]
ALL = "queue orders.fair.0 to orders.fair.15"
MISSING = Inspected(None, ChannelClosedByBroker(404, "NOT_FOUND"))


def told(finding: Finding) -> tuple[str, str, str]:
    return finding.status, finding.check, finding.problem or finding.detail


def judge(inspected: dict[str, Inspected], *routes: dict, consumed: tuple[str, ...] = ()):
    return queues.judge(Config(routes=list(routes)), inspected, consumed)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], "a"),
        (["q.10", "q.9", "q.8"], "q.8 to q.10"),
        (["q1", "q3", "r3", "r4"], "q1, q3, r3 to r4"),
        (["b", "a", "q-0"], "a, b, q-0"),
        (["1", "2", "2024-01", "x"], "1 to 2, 2024-01, x"),
    ],
)
def test_names_with_successive_numbers_are_a_range(names, text):
    assert ranged(names) == text


def test_a_quorum_queue_by_default_is_told_where_that_matters():
    by_default = {"q": Inspected(Seen(1, 0), quorum=True)}
    route = {"path": "/", "queue": "q"}
    assert [told(it) for it in judge(by_default, route)] == [
        ("ok", "queue q", "1 consumer, 0 messages waiting")
    ]
    (countdown,) = judge(by_default, {**route, "countdown": 5, "answer": "wait"})
    assert countdown.status == "fail" and "it is a quorum queue by the default" in countdown.problem
    (idle,) = judge({"q": Inspected(Seen(0, 0), quorum=True)}, route)
    assert "task_default_queue_type" in idle.remedy
    (classic,) = judge({"q": Inspected(Seen(0, 0))}, route)
    assert "quorum" not in classic.remedy


def test_fair_queues_that_are_missing_are_one_line_that_says_what_to_start():
    (finding,) = judge(dict.fromkeys(NAMES, MISSING), FAIR)
    problem = "there are no such queues; the route / names them"
    assert told(finding) == ("fail", ALL, problem)
    assert finding.remedy == (
        "start a worker: celery -A APP worker -n NAME@%h -Q orders (APP: yours, or appserver), "
        "with GATEWAY_FAIR_QUEUES=orders:16 or appserver.setup(app, fair={'orders': 16})"
    )
    # Another route with the same ones has no line of its own.
    assert len(judge(dict.fromkeys(NAMES, MISSING), FAIR, {**FAIR, "path": "/b", "task": "t"})) == 1


def test_fair_queues_that_workers_consume_are_one_line():
    (finding,) = judge(dict.fromkeys(NAMES, Inspected(Seen(2, 3))), FAIR)
    assert told(finding) == ("ok", ALL, "32 consumers, 48 messages waiting")


def test_of_fair_queues_those_with_the_same_problem_are_one_line():
    inspected = dict.fromkeys(NAMES, Inspected(Seen(1, 0)))
    inspected |= dict.fromkeys(NAMES[:2], Inspected(Seen(0, 4)))
    inspected |= dict.fromkeys(NAMES[12:], MISSING)
    idle = "no worker consumes them, with 8 messages waiting; the route / names them"
    missing = "there are no such queues; the route / names them"
    assert [told(finding) for finding in judge(inspected, FAIR)] == [
        ("fail", "queue orders.fair.0 to orders.fair.1", idle),
        ("fail", "queue orders.fair.12 to orders.fair.15", missing),
    ]


def of_another_type(queue: str, vhost: str) -> Inspected:
    """Return what the broker says of a quorum queue that was declared as a classic one."""
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost "
    text += f"'{vhost}': received 'classic' but current is 'quorum'"
    return Inspected(Seen(1, 0), ChannelClosedByBroker(406, text))


def test_fair_queues_of_another_type_are_one_line_whose_remedy_is_for_each():
    (finding,) = judge(dict.fromkeys(NAMES, of_another_type("orders.fair.0", "/")), FAIR)
    assert (finding.status, finding.check) == ("fail", ALL)
    assert finding.remedy == (
        'set queue_type = "quorum" in the route, or stop its workers, and delete it when it is '
        "empty: rabbitmqctl delete_queue orders.fair.0 --if-empty (and so each of orders.fair.0 to "
        "orders.fair.15)"
    )


def test_listed_fair_queues_are_one_line():
    names = ["alpha", "beta", "gamma", "delta"]
    route = {"path": "/", "fair_by": "remote", "queues": names}
    (finding,) = judge(dict.fromkeys(names, MISSING), route)
    assert finding.check == "queue alpha, beta, delta and 1 more"
    assert "-Q alpha,beta,gamma,delta (" in finding.remedy
    assert finding.remedy.endswith(", with GATEWAY_FAIR_QUEUES=alpha,beta,gamma,delta")


def test_the_worker_that_is_missing_altogether_is_told_with_the_fair_queues():
    config = Config(routes=[FAIR, {"path": "/plain"}])
    none, *_ = workers.judge(config, {}, Answers(reachable=False))
    assert none.remedy == (
        "start one: celery -A APP worker -n NAME@%h -Q celery,orders (APP: yours, or "
        "appserver), with GATEWAY_FAIR_QUEUES=orders:16"
    )


def test_workers_of_fair_queues_that_do_not_answer_are_one_line():
    config, seen = Config(routes=[FAIR]), dict.fromkeys(NAMES, Seen(2, 0))
    has = Worker(set(NAMES), {"api.core.main"}, {}, False)
    silent, task = workers.judge(config, seen, Answers({"w1": has}))
    assert silent.problem.startswith("16 of 32 consumers of orders.fair.0 to orders.fair.15 did")
    assert told(task) == ("ok", "task api.core.main", "")
    idle = Worker({"elsewhere"}, {"api.core.main"}, {}, False)
    *_, task = workers.judge(config, seen, Answers({"w1": idle}))
    lacking = "no worker that answers consumes orders.fair.0 to orders.fair.15; w1 has it"
    assert told(task) == ("fail", "task api.core.main", lacking)


@pytest.mark.parametrize(
    ("consumed", "detail", "remedy"),
    [
        ({"shop", "slow"}, "no worker consumes celery; w1 has the task, and consumes shop, slow",
         'set queue = "shop" in the route, or have a worker consume celery (-Q)'),
        (set(), "not checked on queues that no worker consumes", ""),
    ],
)  # fmt: skip
def test_a_task_that_workers_of_another_queue_have_names_that_queue(consumed, detail, remedy):
    config, seen = Config(routes=[{"path": "/"}]), {"celery": Seen(0, 1)}
    has = Worker(consumed, {"api.core.main"}, {}, False)
    *_, task = workers.judge(config, seen, Answers({"w1": has}))
    assert told(task) == ("skipped", "task api.core.main", detail)
    assert task.remedy == remedy


@pytest.mark.parametrize(
    ("queue", "consumed", "meant"),
    [
        ("ordres", ("orders", "celery"), "orders"),
        ("celry", ("orders", "celery"), "celery"),
        ("orders", ("order.fair.0", "order.fair.1"), "order"),
        ("orders", ("celery",), ""),
        ("orders", (), ""),
    ],
)
@pytest.mark.parametrize("inspected", [MISSING, Inspected(Seen(0, 0))], ids=["missing", "idle"])
def test_a_queue_without_a_worker_is_told_with_the_similar_one(queue, consumed, meant, inspected):
    (finding,) = judge({queue: inspected}, {"path": "/", "queue": queue}, consumed=consumed)
    start = f"start a worker: celery -A APP worker -n NAME@%h -Q {queue} (APP: yours, or appserver)"
    remove = f", and type: gateway check --delete-queue {queue}" if inspected.seen else ""
    hint = f"did you mean {meant}? Then correct `queue` there{remove}. Otherwise " if meant else ""
    assert (finding.status, finding.remedy) == ("fail", hint + start)


def test_a_fair_queue_is_not_told_with_those_of_its_own_route():
    inspected = {**dict.fromkeys(NAMES, MISSING), NAMES[0]: Inspected(Seen(1, 0))}
    (finding,) = judge(inspected, FAIR, consumed=("orders",))
    assert "did you mean" not in finding.remedy


def test_sources_whose_body_is_not_signed_are_one_warning():
    own = {"signature": "header:X-S", "signed": "{id}", "id": "header:X"}
    sources = {
        "forge": {"scheme": "gitlab"}, "bot": {"scheme": "telegram", "tolerance": 0},
        "hub": {"scheme": "github"}, "partner": {"scheme": "hmac", **own},
    }  # fmt: skip
    sources = {name: {**each, "secrets": "sesame"} for name, each in sources.items()}
    found = list(settings.sources(Config(sources=sources)))
    assert [told(finding)[:2] for finding in found] == [
        ("warn", "source bot"),
        ("ok", "source hub"),
        ("warn", "source forge (gitlab), bot (telegram), partner (hmac)"),
    ]
    assert "the body is not signed" in found[-1].problem and "use TLS" in found[-1].remedy
    assert "sesame" not in str(found)


SCHEMES_OF = {"shop": "shopify", "forge": "github", "till": "stripe", "chat": "slack", "feed": "x"}
EVENTS = {name: {"scheme": scheme, "secrets": "s"} for name, scheme in SCHEMES_OF.items()}
EVENTS["own"] = {"scheme": "hmac", "secrets": "s", "signature": "header:X-S"}
EVENTS["named"] = {**EVENTS["own"], "event": "header:X-E"}


@pytest.mark.parametrize(
    ("source", "route", "said"),
    [
        ("shop", {"events": ["orders/create", "order/*"]}, "events order/* that"),
        ("shop", {"events": ["order/*"]}, "did you mean orders/*?"),
        ("shop", {"when": {"event": ["orders/creat"]}}, "did you mean orders/create?"),
        ("shop", {"events": ["Orders/Create"]}, "events Orders/Create that"),
        ("forge", {"events": ["issues"]}, "did you mean issues.*?"),
        ("forge", {"events": ["issues.open"]}, "did you mean issues.opened?"),
        ("till", {"events": ["invoices.paid"]}, "did you mean invoice.*?"),
        ("chat", {"events": ["message.channels"]}, "`gateway senders show slack` says what"),
        ("feed", {"events": ["tweet_create_events"]}, "deliveries of feed (x) have no event"),
        ("own", {"events": ["paid"]}, "or set event in the source"),
        ("named", {"events": ["anything"]}, ""),
        ("forge", {"events": ["push", "issues.*", "*.opened", "pull_request*", "*", ""]}, ""),
        ("shop", {"events": ["orders/*", "*/create", "customers/redact"]}, ""),
        ("feed", {"events": ["*"]}, ""),
        (None, {"when": {"event": "x"}}, ""),
    ],
)
def test_a_route_that_waits_for_events_that_its_sender_does_not_have_is_warned_of(
    source, route, said
):
    config = Config(sources=EVENTS, routes=[{"path": "/a", "source": source, **route}])
    found = list(settings.events(config))
    assert [told(finding)[:2] for finding in found] == [("warn", "route /a")] * bool(said)
    assert all(said in str(finding) for finding in found)


def test_the_known_events_of_a_scheme_have_those_of_its_samples():
    for scheme in filter(lambda scheme: find(scheme).events, SCHEMES):
        for sample in find(scheme).samples.values():
            assert any(overlap(sample.event, each) for each in find(scheme).events), scheme


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a", "a", True), ("a", "b", False), ("a*", "ab", True), ("a*", "*b", True),
        ("a*b", "a*c", False), ("a*x*b", "ab*c*yb", True), ("order/*", "orders/*", False),
        ("*", "", True),
    ],
)  # fmt: skip
def test_patterns_overlap_where_a_text_fits_both(one, other, meet):
    assert overlap(one, other) is overlap(other, one) is meet


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


STOCK = {"result_backend": "redis://h/0"}
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


@pytest.mark.parametrize(
    ("route", "conf", "found"),
    [
        ({"answer": "accept"}, {**STOCK, "task_acks_late": False}, True),
        ({"answer": "wait-then-accept"}, STOCK, True),
        ({"prefer": True}, STOCK, True),
        ({"answer": "accept"}, {**STOCK, "task_acks_late": True}, True),
        ({"answer": "accept"}, {"CELERY_RESULT_BACKEND": "redis://h/0"}, True),
        ({"also": [{"task": "t", "queue": "q"}], "queue": "other"}, STOCK, True),
        ({"answer": "accept"}, {**STOCK, **LATE}, False),
        ({"answer": "accept"}, {}, False),  # they are not told
        ({"answer": "accept", "queue": "other"}, STOCK, False),
        ({}, STOCK, False),
    ],
)
def test_workers_that_lose_what_was_accepted_are_named(route, conf, found):
    config = Config(routes=[{"path": "/", "queue": "q", **route}])
    answers = Answers()
    answers.take("active_queues", {"w": [{"name": "q"}]})
    answers.take("conf", {"w": conf})
    answers.take(
        "stats", {"w": {"pool": {"implementation": "celery.concurrency.prefork:TaskPool"}}}
    )
    lines = early(config, answers)
    assert [(line.status, line.check) for line in lines] == [("warn", "acknowledgements")] * found
    assert all(line.problem.startswith("w: ") for line in lines)


def test_the_command_that_deletes_a_queue_names_its_virtual_host():
    for vhost, option in (("/", ""), ("shop", " -p 'shop'")):
        (finding,) = judge({"q": of_another_type("q", vhost)}, {"path": "/", "queue": "q"})
        assert f"rabbitmqctl delete_queue{option} q --if-empty" in finding.remedy


def test_a_deadline_that_a_drain_cuts_off_is_told():
    config = Config(grace=5, routes=[{"path": "/a", "deadline": 5}, {"path": "/b", "deadline": 6}])
    (line,) = settings.drains(config)
    assert (line.status, line.check) == ("warn", "route /b") and "set grace = 6" in line.remedy

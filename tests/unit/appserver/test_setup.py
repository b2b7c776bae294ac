"""What `appserver.setup` makes of somebody's app, and what it leaves to that."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from celery import Celery, Task
from celery.concurrency.prefork import TaskPool as ProcessPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import ImproperlyConfigured
from celery.worker.request import Request
from kombu import Connection

import appserver
from appserver.celery_setup import DEFAULTS, ReplyingBackend
from appserver.poison import PoisonAware, PoisonAwareTasks
from appserver.queues import QUEUE_ARGUMENTS
from appserver.reply_backend import ReplyBackend, SentinelReplyBackend, StorelessReplyBackend

REDIS = "redis://:secret@127.0.0.1:1/3"
SENTINELS = "sentinel://127.0.0.1:1/0;sentinel://b:2/0"


@pytest.fixture
def shop(celery):
    return partial(celery, "shop")


def create(app: Celery, greenlets: bool = False, **worker: object) -> None:
    """Start the step of a worker of `app`."""
    options = {"pool_cls": SimpleNamespace(is_green=greenlets), **worker}
    ReplyingBackend(app).create(SimpleNamespace(app=app, **options))


@pytest.mark.parametrize("name", ["Answer", "__all__"])
def test_an_import_makes_no_app_and_imports_no_celery(name):
    code = f"import sys; from appserver import {name}; print('celery' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_app_is_there_whatever_is_imported_first():
    """A submodule of the same name would be in its place."""
    code = "import appserver.tasks, appserver; print(type(appserver.app), appserver.setup)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("<class 'celery.app.base.Celery'> <function setup"), done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        appserver.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        (REDIS, ReplyBackend),
        ("rediss://127.0.0.1:1/3?ssl_cert_reqs=required", ReplyBackend),
        ("redis+socket:///run/redis.sock", ReplyBackend),
        (SENTINELS, SentinelReplyBackend),
        (None, StorelessReplyBackend),
        ("disabled://", StorelessReplyBackend),
    ],
)
@pytest.mark.parametrize("when", ["constructor", "before", "after", "later"])
def test_results_go_where_they_went(shop, url, backend, when):
    app = shop(backend=url) if when == "constructor" else shop()
    if when == "before":
        app.conf.result_backend = url
    appserver.setup(app)
    if when == "later":
        assert app.conf.result_backend is None
    if when in ("after", "later"):
        app.conf.result_backend = url
    app.conf.result_backend_transport_options = {"global_keyprefix": "eu:"}

    assert type(app.backend) is backend
    if url:
        assert app.backend.url == url.removeprefix("redis+")
    if url == REDIS:
        assert app.backend.connparams["password"] == "secret"
        assert app.backend.get_key_for_task("1").startswith(b"eu:")


def test_what_the_app_has_not_set_is_set(shop):
    app = shop()
    appserver.setup(app)
    assert {name: app.conf[name] for name in DEFAULTS} == DEFAULTS


OWN = {
    "task_acks_late": False, "broker_connection_max_retries": 7,
    "broker_transport_options": {"confirm_publish": False},
    "worker_consumer": "celery.worker.consumer:Consumer",
}  # fmt: skip


@pytest.mark.parametrize("when", ["constructor", "before", "after", "object", "namespace", "read"])
def test_what_the_app_has_set_stays(shop, when):
    app = shop(**OWN) if when == "constructor" else shop()
    if when == "before":
        app.conf.update(OWN)
    if when == "read":
        assert app.conf.task_acks_late is False
    appserver.setup(app)
    if when in ("after", "read"):
        app.conf.update(OWN)
    if when == "object":
        app.config_from_object(OWN)
    if when == "namespace":
        prefixed = {f"CELERY_{name.upper()}": value for name, value in OWN.items()}
        app.config_from_object(SimpleNamespace(**prefixed), namespace="CELERY")

    assert {name: app.conf[name] for name in OWN} == OWN
    assert app.conf.task_reject_on_worker_lost is True


def test_what_the_app_has_set_by_old_names_stays(shop):
    app = shop()
    appserver.setup(app)
    app.config_from_object({"CELERY_ACKS_LATE": False, "BROKER_TRANSPORT_OPTIONS": {}})
    assert (app.conf.task_acks_late, app.conf.broker_transport_options) == (False, {})
    assert app.conf.task_reject_on_worker_lost is True


def test_settings_that_are_read_already_get_the_defaults_and_so_do_those_that_follow(shop):
    app = shop()
    assert app.conf.task_acks_late is False
    appserver.setup(app)
    assert app.conf.task_acks_late is True
    app.config_from_object({"task_default_queue": "orders"})
    assert (app.conf.task_default_queue, app.conf.task_acks_late) == ("orders", True)


def test_twice_is_once(shop):
    app = shop()
    appserver.setup(app)
    steps = {kind: set(steps) for kind, steps in app.steps.items()}
    assert "celery.chord" in app.tasks
    appserver.setup(app)
    assert app.steps == steps
    assert len(app.conf.maps) == len(shop().conf.finalize().maps) + 1


def test_too_late_is_told(shop):
    app = shop()
    assert "celery.chord" in app.tasks
    with pytest.raises(ImproperlyConfigured, match=r"appserver.setup\(app\) .* before"):
        appserver.setup(app)


def test_queues_of_the_environment_are_beside_the_apps_own(shop, monkeypatch):
    monkeypatch.setenv("GATEWAY_QUEUES", "orders, mine,mail,orders")
    app = shop()
    appserver.setup(app)
    app.conf.update(task_default_queue="mine", task_default_exchange="here")

    mine, orders, mail = app.conf.task_queues
    assert (mine.name, mine.exchange.name, mine.routing_key) == ("mine", "here", "mine")
    assert not mine.queue_arguments
    assert [queue.name for queue in (orders, mail)] == ["orders", "mail"]
    assert orders.queue_arguments == {"x-queue-type": "quorum", **QUEUE_ARGUMENTS}

    app = shop()
    app.conf.task_queues = [orders]
    appserver.setup(app)
    assert app.conf.task_queues == [orders]


@pytest.mark.parametrize("url", ["rpc://", "cache+memory://", "file:///tmp"])
def test_a_worker_whose_results_go_elsewhere_does_not_start(shop, url):
    app = shop(backend=url, broker="memory://")
    appserver.setup(app)
    with pytest.raises(SystemExit, match="'shop' is .*, and its workers would not"):
        create(app)


def test_a_worker_that_takes_no_json_does_not_start(shop):
    app = shop(backend=REDIS, broker="memory://")
    appserver.setup(app)
    app.conf.accept_content = ["pickle", "application/json"]
    create(app)
    app.conf.accept_content = ["pickle"]
    with pytest.raises(SystemExit, match="would take no message of the gateway: put 'json' into"):
        create(app)


def test_options_of_its_own_leave_the_others_as_they_are(shop):
    app = shop(backend=REDIS, broker="memory://")
    appserver.setup(app)
    app.conf.broker_transport_options = {"visibility_timeout": 3600, "confirm_timeout": 9}
    create(app)
    options = {"confirm_publish": True, "confirm_timeout": 9, "visibility_timeout": 3600}
    assert app.conf.broker_transport_options == options


def test_a_worker_whose_processes_are_no_forks_does_not_start(shop, monkeypatch):
    app = shop(backend=REDIS, broker="memory://")
    appserver.setup(app)
    create(app, pool_cls=ThreadPool, pool_start_method="spawn")
    create(app, pool_cls=ProcessPool, pool_start_method="fork")
    with pytest.raises(SystemExit, match="the app 'shop' would be no forks"):
        create(app, pool_cls=ProcessPool, pool_start_method="spawn")
    monkeypatch.setattr("appserver.celery_setup.get_start_method", lambda: "spawn")
    with pytest.raises(SystemExit, match="the app 'shop' would be no forks"):
        create(app, pool_cls=ProcessPool)


@pytest.mark.parametrize("greenlets", [False, True])
@pytest.mark.parametrize("when", ["constructor", "after", "object"])
@pytest.mark.parametrize(
    ("url", "backend"),
    [(REDIS, ReplyBackend), (SENTINELS, SentinelReplyBackend), (None, StorelessReplyBackend)],
)
def test_a_workers_app_keeps_the_setting_of_its_result_backend(shop, url, backend, when, greenlets):
    app = shop(backend=url) if when == "constructor" else shop()
    appserver.setup(app)
    if when == "after":
        app.conf.result_backend = url
    if when == "object":
        app.config_from_object({"result_backend": url})
    create(app, greenlets)

    assert app.conf.result_backend == app.conf.get("result_backend") == url
    assert app.backend_cls is None
    # Celery before 5.7 reads it like this where a worker is asked for its settings.
    assert "secret" not in Connection(app.conf.result_backend or "memory://").as_uri()
    assert "secret" not in str(app.conf.table(with_defaults=True)["result_backend"])
    other = app._get_backend()  # as each thread has its own
    assert (type(other), other.url) == (backend, url)


@pytest.mark.parametrize(
    ("greenlets", "settings", "shared"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"result_backend_thread_safe": False}, False),
        (True, {"redis_max_connections": 10}, False),
        (True, {"result_backend": f"{REDIS}?max_connections=10"}, False),
        (True, {"CELERY_RESULT_BACKEND_THREAD_SAFE": False}, False),
    ],
)
def test_greenlets_share_one_backend_unless_the_apps_settings_forbid_it(
    shop, greenlets, settings, shared
):
    app = shop(backend=settings.get("result_backend", REDIS))
    if any(name.startswith("CELERY_") for name in settings):
        app.config_from_object(SimpleNamespace(**settings), namespace="CELERY")
    else:
        app.conf.update(settings)
    appserver.setup(app)
    create(app, greenlets)
    assert app._get_backend().thread_safe is shared


def test_every_task_is_poison_aware_but_those_with_a_request_class_of_their_own(shop):
    app = shop()
    appserver.setup(app)
    begun = []

    class Noting(Task):
        def before_start(self, task_id, args, kwargs):
            begun.append(task_id)

    class Requested(Task):
        Request = f"{Request.__module__}:{Request.__qualname__}Of"

    task = partial(app.task, shared=False)

    def run(): ...
    def tell(self):
        return self.name

    plain, noting = task(run, name="plain"), task(run, name="noting", base=Noting)
    requested = task(run, name="requested", base=Requested)
    bound = task(tell, name="bound", bind=True)
    worker = SimpleNamespace(app=app)
    for _ in range(2):
        PoisonAwareTasks(worker).create(worker)

    classes = {name: type(app.tasks[name]) for name in app.tasks}
    others = {name for name, cls in classes.items() if not issubclass(cls, PoisonAware)}
    assert others == {requested.name}
    assert classes["plain"].__mro__.count(PoisonAware) == 1
    app.tasks["noting"].before_start("1", (), {})
    app.tasks["plain"].before_start("2", (), {})
    assert begun == ["1"]
    assert bound.apply().get() == "bound"
    assert plain.apply().successful() and noting.apply().successful()
    assert len(begun) == 2

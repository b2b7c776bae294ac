"""An app is led to the servers of `gateway dev`, wherever it names its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import appserver
from appserver.lost_results import CountLostResults
from appserver.reply_backend import ReplyMixin
from gateway.stack.attached import Attachment, attach, load

STAGING, STORE = "amqp://staging.example.com//", "redis://staging.example.com/0"
OURS = {
    "GATEWAY_BROKER_URL": "redis://127.0.0.1:7/0",
    "GATEWAY_RESULT_BACKEND": "redis://127.0.0.1:7/1",
}
VARIABLES = [
    *("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"),
    "CELERY_RESULT_BACKEND",
]


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """Have the variables that an attachment sets restored."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "amqp://from-the-shell.example.com//")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of such a name to the working directory, to be imported."""

    def write(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def shop(**options: str) -> Celery:
    return Celery("shop", set_as_current=False, **options)


def constructor() -> Celery:
    return shop(broker=STAGING, backend=STORE)


def conf_object() -> Celery:
    app = shop()
    app.conf.broker_url, app.conf.result_backend = STAGING, STORE
    app.conf.broker_read_url = app.conf.broker_write_url = STAGING
    return app


def configured() -> Celery:
    app = conf_object()
    assert app.conf.task_default_queue == "celery"  # which loads the configuration
    return app


def from_object(namespace: str | None = None, **settings: object) -> Celery:
    app = shop()
    app.config_from_object(SimpleNamespace(**settings), namespace=namespace)
    return app


def parts() -> Celery:
    app = constructor()
    app.conf.update(
        broker_user="me", broker_password="secret", broker_vhost="staging", broker_port=5671,
        broker_transport="amqps", broker_use_ssl=True,
        broker_transport_options={"global_keyprefix": "x"},
        result_backend_transport_options={"global_keyprefix": "x"},
        redis_password="secret", redis_db=5, redis_backend_use_ssl={"ssl_ca_certs": "x"},
    )  # fmt: skip
    return app


def subclass() -> Celery:
    class Shop(Celery):
        backend_cls = "cache+memory://"

        def on_configure(self):
            self.conf.broker_url = STAGING

    return Shop("shop", broker=STAGING, set_as_current=False)


def url_of(one: Any) -> str:
    return one.as_uri(include_password=True)


DJANGOS = {
    "CELERY_BROKER_URL": STAGING, "CELERY_RESULT_BACKEND": STORE,
    "CELERY_BROKER_USE_SSL": {"ca_certs": "x"},
}  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        constructor, conf_object, configured, parts, subclass,
        partial(from_object, broker_url=STAGING, result_backend=STORE),
        partial(from_object, BROKER_URL=STAGING, CELERY_RESULT_BACKEND=STORE),
        partial(from_object, "CELERY", **DJANGOS),
    ],
)  # fmt: skip
def test_neither_broker_nor_store_is_the_apps_own(make):
    app = make()

    Attachment(OURS).apply(app)

    for connection in (app.connection_for_read(), app.connection_for_write(), app.connection()):
        assert url_of(connection) == OURS["GATEWAY_BROKER_URL"]
        assert (connection.userid, connection.password) == (None, None)
        assert not connection.ssl
        assert "global_keyprefix" not in connection.transport_options
    assert url_of(app.backend) == OURS["GATEWAY_RESULT_BACKEND"]
    assert app.backend.connparams["port"] == 7 and app.backend.connparams["db"] == 1
    assert not app.backend.connparams.get("password")
    assert app.backend.key_t(app.backend.get_key_for_task("id")) == b"celery-task-meta-id"


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_apps_module_sets_in_the_environment_is_set_back(name):
    attachment = Attachment(OURS)
    attachment.prepare()
    os.environ[name] = STAGING  # as a file of variables that is read on import

    app = constructor()
    attachment.apply(app)

    assert url_of(app.connection_for_read()) == OURS["GATEWAY_BROKER_URL"]
    assert url_of(app.connection_for_write()) == OURS["GATEWAY_BROKER_URL"]
    assert app.conf.result_backend.endswith(OURS["GATEWAY_RESULT_BACKEND"])


def test_another_app_of_the_same_process_is_led_there_too():
    Attachment(OURS).apply(constructor())
    other = Celery("other", broker=STAGING, backend=STORE, set_as_current=False)
    assert url_of(other.connection_for_write()) == OURS["GATEWAY_BROKER_URL"]


def test_an_app_that_goes_its_own_way_all_the_same_is_not_started():
    class Stubborn(Celery):
        def connection_for_read(self, url=None, **kwargs):
            return super().connection_for_read("amqp://me:secret@staging.example.com//")

    with pytest.raises(ImproperlyConfigured, match=r"staging\.example\.com") as error:
        Attachment(OURS).apply(Stubborn("shop", set_as_current=False))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("backend", "replies"),
    [
        (STORE, False),
        (f"appserver.reply_backend:ReplyBackend+{STORE}", True),
        ("rpc://", True),
        (None, False),
    ],
)
def test_a_task_says_what_the_app_has_and_whether_it_replies_by_itself(backend, replies):
    app = shop(backend=backend)

    @app.task(name="shop.take_order", shared=False)
    def take_order(query: dict, headers: dict, body: str) -> None:
        pass

    app.conf.task_ignore_result = True

    attach(app, Attachment(OURS))

    described = app.tasks["gateway.describe"]
    found = described()
    assert found["replies"] is replies
    # Beside those that other modules of this process share with every app.
    assert "shop.take_order" in found["tasks"] and "gateway.describe" not in found["tasks"]
    assert not described.ignore_result


def test_its_backend_replies_and_the_setting_is_a_url_that_libraries_can_read():
    app = constructor()
    attach(app, Attachment(OURS))
    assert app.conf.result_backend == OURS["GATEWAY_RESULT_BACKEND"]
    assert app.conf.get("result_backend") == OURS["GATEWAY_RESULT_BACKEND"]
    assert isinstance(app.backend, ReplyMixin)
    # `gateway check` reads what this tells.
    assert CountLostResults in app.steps["worker"]


def test_an_app_that_was_set_up_replies_by_itself():
    app = shop(backend=STORE)
    appserver.setup(app)

    attach(app, Attachment(OURS))

    assert app.tasks["gateway.describe"]()["replies"] is True


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_shop", "there is no module no_such_shop in "),
        ("no_such_shop.celery:app", "there is no module no_such_shop in "),
        ("tests.unit.test_delivery:shop", "test_delivery has no Celery app called shop"),
        ("tests.unit.test_delivery", "test_delivery has no Celery app called app or celery; name"),
        ("os:sep", "os has no Celery app called sep; name the module in which "),
        ("appserver.tasks:ap", "did you mean --app appserver.tasks:app?"),
        ("appserver/tasks.py", "did you mean --app appserver.tasks?"),
    ],
)
def test_an_app_that_is_not_there_is_told_in_a_sentence(name, told):
    with pytest.raises(SystemExit) as end:
        load(name)
    assert str(end.value).startswith(f"--app {name}: ") and told in str(end.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os.no_such_name", "AttributeError: module 'os' has no attribute"),
        ("int('x')", "invalid literal for int"),
        ("def broken(:", "SyntaxError: "),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_an_app_whose_import_fails_is_told_with_the_line_and_the_error(line, told, module):
    module("shop_with_a_gap", f"\n{line}\n")
    with pytest.raises(SystemExit) as end:
        load("shop_with_a_gap")
    assert told in str(end.value) and "Traceback" not in str(end.value)
    assert "shop_with_a_gap.py" in str(end.value) and "line 2" in str(end.value)


def test_an_import_that_waits_is_told_with_its_line(module, monkeypatch, capsys):
    class Timer(threading.Thread):
        """Has no clock: the imported module starts it, and waits for it."""

        def __init__(self, seconds: float, function: Callable[..., None], args: tuple):
            super().__init__(target=function, args=args)
            monkeypatch.setattr("builtins.wait_for_timer", lambda: (self.run_now(), self.join()))

        def start(self) -> None:
            """Nothing yet."""

        def run_now(self) -> None:
            super().start()

        def cancel(self) -> None:
            assert not self.is_alive()

    app = "app = Celery('shop', set_as_current=False)"
    module("shop_that_waits", f"from celery import Celery\nwait_for_timer()\n{app}\n")
    monkeypatch.setattr("builtins.wait_for_timer", None, raising=False)
    monkeypatch.setattr(threading, "Timer", Timer)

    assert load("shop_that_waits").main == "shop"

    told = capsys.readouterr().err
    assert told.startswith("--app shop_that_waits: its import has taken 5 s and goes on in ")
    assert "shop_that_waits.py, line 2: wait_for_timer()" in told

"""The app server's configuration follows the gateway's variables."""

from __future__ import annotations

import ssl

import pytest
from celery.exceptions import ImproperlyConfigured
from kombu.serialization import dumps, loads

from appserver import app, celery_app
from appserver.celery_setup import DEFAULTS
from appserver.queues import DEAD_LETTER_EXCHANGE, QUEUE_ARGUMENTS, task_queues
from appserver.settings import settings
from appserver.tasks import echo, fail, large, main, sleep


def test_defaults():
    conf = settings({})

    assert conf["broker_url"] == "amqp://guest:guest@127.0.0.1:5672//"
    assert conf["result_backend"] == "redis://127.0.0.1:6379/0"
    assert "broker_use_ssl" not in conf
    assert conf["accept_content"] == ["json"]
    assert conf["worker_consumer"] == "appserver.consumer:QuietConsumer"
    chatty = settings({"GATEWAY_WORKER_CHATTER": "1"})
    assert chatty["worker_consumer"] == "appserver.consumer:PromptConsumer"


def test_the_app_is_set_up_as_any_other():
    assert app.conf["task_acks_late"] and app.conf["task_reject_on_worker_lost"]
    assert app.conf["broker_transport_options"]["confirm_publish"]
    assert app.conf["worker_consumer"] == "appserver.consumer:QuietConsumer"


def test_every_setting_is_one_that_celery_knows():
    known = set(app.conf.defaults[-1])
    assert {*settings({}), *DEFAULTS} - known == set()


def test_brokers_are_a_list_of_one_scheme():
    urls = "amqp://a//;amqp://b//"
    # Workers begin with different nodes.
    firsts = {settings({"GATEWAY_BROKER_URL": urls})["broker_url"] for _ in range(100)}
    assert firsts == {urls, "amqp://b//;amqp://a//"}
    with pytest.raises(ImproperlyConfigured, match="amqp, amqps"):
        settings({"GATEWAY_BROKER_URL": "amqp://a//;amqps://b//"})


@pytest.mark.parametrize(
    ("name", "url", "told"),
    [
        ("BROKER_URL", "http://x", "begins with 'http'"),
        ("BROKER_URL", "amqp://u:secret@h:abc//", "host or port cannot be read"),
        ("BROKER_URL", "amqp://u:secret[@h//", "host or port cannot be read"),
        ("BROKER_URL", "amqp://h//;amqp://h:70000//", "host or port cannot be read"),
        ("BROKER_URL", "amqp://h:0//", "the port is no number"),
        ("BROKER_URL", "redis://h/abc", "the database is no number"),
        ("RESULT_BACKEND", "redis://:secret@h/abc", "the database is no number"),
        ("RESULT_BACKEND", "sentinel://h:26379/0;sentinel://h:x/0", "host or port cannot"),
    ],
)
def test_a_url_that_cannot_be_is_told_with_its_variable(name, url, told):
    with pytest.raises(ImproperlyConfigured, match=f"^GATEWAY_{name}:? {told}") as error:
        settings({f"GATEWAY_{name}": url})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("text", "seconds"), [("", 300), ("60", 60), ("0.2", 1), ("90.5", 91)])
def test_results_are_kept_as_long_as_the_gateway_expects(text, seconds):
    assert settings({"GATEWAY_RESULT_EXPIRES": text})["result_expires"] == seconds


@pytest.mark.parametrize("text", ["0", "-1", "86401", "1e300", "a day", "inf", "nan"])
def test_results_cannot_be_kept_for_no_time_or_ever(text):
    with pytest.raises(ImproperlyConfigured, match=f"GATEWAY_RESULT_EXPIRES is '{text}'"):
        settings({"GATEWAY_RESULT_EXPIRES": text})


def test_a_worker_with_a_wrong_variable_ends_without_a_traceback(monkeypatch):
    monkeypatch.setenv("GATEWAY_RESULT_EXPIRES", "soon")
    with pytest.raises(SystemExit, match="^appserver: GATEWAY_RESULT_EXPIRES is 'soon'; it has"):
        celery_app._settings()


def test_tls_is_verified_unless_switched_off():
    urls = {"GATEWAY_BROKER_URL": "amqps://host", "GATEWAY_RESULT_BACKEND": "rediss://host"}
    urls["GATEWAY_TLS_CA"] = "/ca.pem"

    conf = settings(urls)
    assert conf["broker_use_ssl"]["cert_reqs"] == ssl.CERT_REQUIRED
    assert conf["broker_use_ssl"]["ca_certs"] == "/ca.pem"
    assert "server_hostname" in conf["broker_use_ssl"]
    assert conf["redis_backend_use_ssl"]["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert conf["redis_backend_use_ssl"]["ssl_check_hostname"] is True

    conf = settings({**urls, "GATEWAY_TLS_VERIFY": "false"})
    assert conf["broker_use_ssl"]["cert_reqs"] == ssl.CERT_NONE
    assert "server_hostname" not in conf["broker_use_ssl"]
    assert conf["redis_backend_use_ssl"]["ssl_check_hostname"] is False


def test_result_backends():
    def backend(url, **more):
        return settings({"GATEWAY_RESULT_BACKEND": url, **more})

    assert backend("")["result_backend"] is None
    sentinel = backend("sentinel://a:26379/0;sentinel://b:26379/0?master_name=main")
    assert sentinel["result_backend"].startswith("sentinel://a")
    assert sentinel["result_backend_transport_options"]["master_name"] == "main"
    prefixed = backend("redis://a", GATEWAY_RESULT_KEY_PREFIX="eu")
    assert prefixed["result_backend_transport_options"]["global_keyprefix"] == "eu"
    with pytest.raises(ImproperlyConfigured, match="'mongodb'"):
        backend("mongodb://host")


def test_sentinels_have_an_account_and_tls():
    def asked(url: str, **more: str) -> tuple[dict, dict | None]:
        conf = settings({"GATEWAY_RESULT_BACKEND": url, **more})
        options = conf["result_backend_transport_options"]["sentinel_kwargs"]
        return options, conf.get("redis_backend_use_ssl")

    account = {"GATEWAY_SENTINEL_USERNAME": "watcher", "GATEWAY_SENTINEL_PASSWORD": "p"}
    plain, tls = asked("sentinel://a;sentinel://b", **account)
    assert (plain["username"], plain["password"]) == ("watcher", "p")
    assert plain.get("ssl") is tls is None

    url = "sentinel://a?ssl=true&ssl_cert_reqs=CERT_OPTIONAL&ssl_check_hostname=false;sentinel://b"
    secure, tls = asked(url, GATEWAY_TLS_CA="/ca.pem")
    assert secure["ssl"] is True
    assert tls.items() <= secure.items()
    assert (tls["ssl_ca_certs"], tls["ssl_cert_reqs"]) == ("/ca.pem", ssl.CERT_OPTIONAL)
    assert tls["ssl_check_hostname"] is False
    for more, verified in (("&ssl_cert_reqs=none", ssl.CERT_NONE), ("", ssl.CERT_REQUIRED)):
        _, tls = asked(f"sentinel://a?ssl=true{more}")
        assert (tls["ssl_cert_reqs"], tls["ssl_check_hostname"]) == (verified, not more)


def test_redis_as_broker_has_no_confirms():
    conf = settings({"GATEWAY_BROKER_URL": "redis://host/1"})
    assert conf["broker_transport_options"] == {"visibility_timeout": 600}


def test_the_plain_queue_never_gets_arguments():
    plain, wechat, github = task_queues("wechat, github,,celery,wechat")

    assert (plain.name, plain.queue_arguments) == ("celery", None)
    assert [queue.name for queue in (wechat, github)] == ["wechat", "github"]
    assert wechat.queue_arguments == {"x-queue-type": "quorum", **QUEUE_ARGUMENTS}
    assert wechat.queue_arguments["x-dead-letter-exchange"] == DEAD_LETTER_EXCHANGE


def test_importing_the_app_makes_it_nobodys_current_app():
    from celery import current_app

    assert current_app.main != "appserver"


@pytest.mark.parametrize("task", [main, echo, sleep])
@pytest.mark.parametrize("body", ["text", b"\xff\x00", b"bytes", ""])
def test_tasks_return_the_body_as_it_came(task, body):
    content_type, encoding, payload = dumps([{"seconds": "0"}, {}, body], serializer="json")
    arguments = loads(payload, content_type, encoding)

    assert task(*arguments) == body


def test_load_test_vocabulary():
    assert large({}, {}, "") == "x" * 100_000
    assert len(large({"bytes": "3"}, {}, "")) == 3
    assert len(large({"bytes": "99999999"}, {}, "")) == 50_000_000
    with pytest.raises(Exception, match="as asked"):
        fail({}, {}, "")
    assert main.name == "api.core.main"

"""What the URL of a broker or a store may say, and what clients make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu import Connection
from redis.connection import parse_url

from gateway.amqp.kombu_publisher import KombuPublisher
from gateway.config.loading import load
from gateway.config.settings import TLS, Config
from gateway.config.urls import master_name, redis_tls, without_options
from gateway.errors import ConfigError
from gateway.metrics import Metrics
from gateway.stores.result_store import connect, key_prefix, without_password
from gateway.strategies.celery_client import CeleryClient

FILE = str(Path(__file__))


def problem(**values: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(values, {})
    (text,) = error.value.problems
    return text


@pytest.mark.parametrize(
    ("url", "required"),
    [
        ("rediss://h/0?ssl_cert_reqs=CERT_REQUIRED", "required"),
        ("rediss://h/0?ssl_cert_reqs=required", "required"),
        ("rediss://h/0?ssl_cert_reqs=CERT_OPTIONAL", "optional"),
        ("rediss://h/0?ssl_cert_reqs=CERT_NONE", "none"),
        ("rediss://h/0?ssl_cert_reqs=none", "none"),
        ("rediss://h/0", "required"),
    ],
)
def test_celerys_words_for_verification_are_those_of_every_client(url: str, required: str):
    config = Config(result_backend=url, broker_url=url)
    found = connect(config).connection_pool.connection_kwargs
    of_celery = CeleryClient(config).app.backend.connparams
    assert (found["ssl_cert_reqs"], found["ssl_check_hostname"]) == (required, required != "none")
    assert of_celery["ssl_cert_reqs"].name == f"CERT_{required.upper()}"
    assert of_celery["ssl_check_hostname"] == (required != "none")


def test_the_urls_files_take_precedence_over_those_of_the_file():
    path = Path(FILE)
    tls = TLS.model_construct(ca=path.parent / "__init__.py", cert=path, key=path, verify=False)
    url = f"rediss://h?ssl_ca_certs={FILE}"
    assert redis_tls(url, tls) == {
        "ssl_ca_certs": FILE, "ssl_certfile": FILE, "ssl_keyfile": FILE, "ssl_cert_reqs": "none",
        "ssl_check_hostname": False,
    }  # fmt: skip
    found = redis_tls(f"rediss://h?ssl_cert_reqs=CERT_REQUIRED&ssl_certfile={FILE}", tls)
    assert (found["ssl_keyfile"], found["ssl_cert_reqs"]) == (None, "required")
    named = redis_tls("rediss://h?ssl_cert_reqs=CERT_REQUIRED&ssl_check_hostname=False", tls)
    assert (named["ssl_cert_reqs"], named["ssl_check_hostname"]) == ("required", False)
    assert redis_tls("redis://h", tls) == {}


CLIENTS = (
    "client_name=shop&decode_responses=true&health_check_interval=1&max_connections=1&protocol=3"
    "&retry_on_timeout=true&socket_connect_timeout=60&socket_keepalive=false&socket_timeout=0.1"
)


@pytest.mark.parametrize("url", ["redis://u:p%40@h:1/2", "rediss://u:p%40@h:1/2"])
def test_what_workers_clients_do_in_their_way_changes_nothing_here(url: str):
    plain = connect(Config(result_backend=url)).connection_pool.connection_kwargs
    given = connect(Config(result_backend=f"{url}?{CLIENTS}")).connection_pool.connection_kwargs
    own = {"retry", "himport_registry", "redis_connect_func"}  # an object each
    assert given.keys() == plain.keys()
    assert {name for name in given if given[name] != plain[name]} <= own
    assert (given["protocol"], given["socket_timeout"], given["db"]) == (2, None, 2)


def test_celerys_client_and_kombu_get_no_options_of_others():
    url = f"redis://h/3?{CLIENTS}"
    parameters = CeleryClient(Config(result_backend=url)).app.backend.connparams
    assert not {"protocol", "decode_responses"} & parameters.keys()
    assert (parameters["db"], parameters["max_connections"]) == (3, 256)
    config = Config(broker_url="rediss://h/3?ssl_cert_reqs=CERT_NONE&heartbeat=5")
    publisher = KombuPublisher(config, Metrics())
    client = Connection(publisher._url, ssl=publisher._tls)
    assert (client.virtual_host, client.ssl["ssl_cert_reqs"]) == ("3", "none")


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("redis://h", 0), ("redis://h/", 0), ("redis://h/4", 4), ("redis://h/4?db=5", 5),
        ("redis://h?db=5", 5), ("redis://:a;b@h/4", 4),
    ],
)  # fmt: skip
def test_the_database_is_celerys(url: str, database: int):
    assert connect(Config(result_backend=url)).connection_pool.connection_kwargs["db"] == database
    assert parse_url(without_options(url))["db"] == database
    assert CeleryClient(Config(result_backend=url)).app.backend.connparams["db"] == database


def test_the_masters_name_may_be_in_any_part_of_a_list():
    assert master_name("sentinel://a") == "mymaster"
    for parts in ("a?master_name=main;sentinel://b", "a;sentinel://b?master_name=main"):
        assert master_name(f"sentinel://{parts}") == "main"
    same = "sentinel://a/2?master_name=main;sentinel://b?master_name=main&protocol=3"
    assert Config(result_backend=same).results == same
    other = "sentinel://a?master_name=main;sentinel://b?master_name=other"
    assert "several values of master_name=" in problem(result_backend=other)


NEITHER = "do not both know the option"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://a;redis://b", "give one URL, or a list of Sentinels"),
        ("redis://a/0,redis://b/0", "give one URL, or a list of Sentinels"),
        ("redis://a; rediss://b", "give one URL, or a list of Sentinels"),
        ("redis://a,b/0", "has to have a host"),
        ("sentinel://a;redis://b", "begins with sentinel://"),
        ("sentinel://a;b:1", "begins with sentinel://"),
        ("redis://h/zero", "the database after the host has to be a number"),
        ("redis://h/0/1", "the database after the host has to be a number"),
        ("redis://h/-1", "the database after the host has to be a number"),
        ("redis://h?db=one", "db= has to be a whole number"),
        ("redis://h?protocol=4", "protocol= has to be 2 or 3"),
        ("redis://h?protocol=2&protocol=3", "has several values of protocol="),
        ("redis://h?decode_responses=maybe", "decode_responses= has to be true or false"),
        ("redis://h?socket_timeout=soon", "socket_timeout= has to be a number"),
        ("redis://h?encoding=utf-16", f"{NEITHER} encoding=; there are db, client_name,"),
        ("redis://h?protocoll=3", f"{NEITHER} protocoll=; did you mean protocol?"),
        ("redis://h?%0a=3", "has an option that is no text"),
        ("redis://h?password=x", "password= is not read: write redis://USER:PASSWORD@HOST"),
        ("redis://h?ssl_cert_reqs=CERT_NONE",
         "ssl_cert_reqs= has no effect on workers in a URL with redis://; use rediss://"),
        ("sentinel://h?ssl_cert_reqs=CERT_NONE", "has no effect without ssl=true; add that"),
        ("rediss://h?ssl_cert_reqs=maybe", "has to be CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE"),
        ("rediss://h?ssl_cert_reqs=cert_none", "has to be CERT_REQUIRED"),
        ("rediss://h?ssl_ca_certs=/none", "ssl_ca_certs= has to be the path of a file that exists"),
        ("rediss://h?ssl_cert_req=none", f"{NEITHER} ssl_cert_req=; did you mean ssl_cert_reqs?"),
        ("rediss://h?ssl_check_hostname=0", "ssl_check_hostname= has to be true or false"),
        ("rpc://", "rpc:// is a setting of the workers; leave this empty with the strategy pika"),
    ],
)  # fmt: skip
def test_a_stores_url_that_workers_read_otherwise_is_refused(url: str, why: str):
    assert why in problem(result_backend=url)
    assert why in problem(state_url=url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("amqp://a,amqp://b", "has to have a host"),
        ("amqp://h//?connection_attempts=3", f"{NEITHER} connection_attempts=; there are"),
        ("amqp://h//?connect_timeout=3", f"{NEITHER} connect_timeout=; there are heartbeat,"),
        ("amqp://h//?heartbeats=3", f"{NEITHER} heartbeats=; did you mean heartbeat?"),
        ("amqp://h//?login_method=EXTERNAL", "login_method= has to be PLAIN or AMQPLAIN"),
        ("amqp://h//?ssl_ca_certs=/x", "ssl_ca_certs= has no effect on workers in a URL with"),
        ("amqps://h//?ssl_cert_reqs=CERT_NONE", "use [tls] (the workers: broker_use_ssl"),
        ("amqp://u:p@ss/w@h//", "has a character that has to be escaped; in a password write"),
        ("amqp://u:a#b@h//", "in a password write # / ? @ : as %23 %2F %3F %40 %3A"),
        ("redis://h/0?protocol=3", f"{NEITHER} protocol=; there are heartbeat"),
        ("redis://h/zero", "the database after the host has to be a number"),
    ],
)
def test_a_brokers_url_that_workers_read_otherwise_is_refused(url: str, why: str):
    assert why in problem(broker_url=url, strategy="redis")


@pytest.mark.parametrize(
    "url", ["redis://u:12?secret@h/0", "redis://u:12/secret@h/0", "redis://u:12#secret@h/0"]
)
def test_the_rest_of_a_password_is_not_shown(url: str):
    for name in ("result_backend", "broker_url"):
        text = problem(**{name: url, "strategy": "redis"})
        assert "in a password write # / ? @ : as" in text and "secret" not in text


def test_brokers_take_what_kombu_takes():
    for url in ("amqp://h//?heartbeat=7&login_method=AMQPLAIN", "rediss://h/1?ssl_cert_reqs=none"):
        assert Config(broker_url=url).brokers == [url]
        assert Connection(url).hostname == "h"


SENTINELS = "sentinel://user:p%40ss@a:1/3;sentinel://:p%40ss@b;sentinel://c:2?master_name=main"


def test_account_and_database_behind_sentinels_are_the_first_urls():
    pool = connect(Config(result_backend=SENTINELS)).connection_pool

    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("user", "p@ss", 3)
    watchers = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(w["host"], w["port"]) for w in watchers] == [("a", 1), ("b", 26379), ("c", 2)]
    assert not any(w.get("password") for w in watchers)


@pytest.mark.parametrize("url", [SENTINELS, "redis://:p%40ss@a/0"])
def test_no_password_is_shown(url: str):
    assert "ss@" not in without_password(url)
    assert "a" in without_password(url)


@pytest.mark.parametrize(
    ("prefix", "key"),
    [("", "celery-task-meta-"), ("shop", "shop_celery-task-meta-"), ("a:", "a:celery-task-meta-")],
)
def test_a_prefix_stands_before_the_key_as_celery_writes_it(prefix: str, key: str):
    assert key_prefix(Config(result_key_prefix=prefix)) == key

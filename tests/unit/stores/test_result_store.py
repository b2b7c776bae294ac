"""What a result store's URL says, before anybody connects."""

from __future__ import annotations

import pytest

from gateway.config.settings import Config
from gateway.config.urls import master_name
from gateway.stores.result_store import connect, key_prefix, without_password

SENTINELS = "sentinel://user:p%40ss@a:1/3;sentinel://:p%40ss@b;sentinel://c:2?master_name=main"


def test_a_sentinel_url_names_its_master_in_the_last_part():
    assert master_name(SENTINELS) == "main"
    assert master_name("sentinel://a") == "mymaster"


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

"""A worker of a Celery that lacks all the private parts that `appserver.setup` uses."""

from __future__ import annotations

import pytest

from tests.support.config import route
from tests.support.requests import post
from tests.unit.test_private_parts import private_parts

#: An app on such a Celery.
SHOP = """\
from appserver import private_parts, setup

private_parts.is_there = lambda name: False

from celery import Celery

app = Celery("shop")
setup(app)

@app.task(name="echo")
def echo(*args):
    return "from an older day"
"""

#: What a worker uses in any case, by pool.
USED = {
    "solo": {"bootsteps", "poison", "result_script", "task_stream"},
    "prefork": {"bootsteps", "poison", "process_pool", "result_script", "task_stream"},
}


@pytest.mark.parametrize("pool", USED)
def test_it_works_as_plain_celery_and_says_what_is_missing(
    stack, own_rabbitmq, redis_server, start_gateway, tmp_path, pool
):
    (tmp_path / "shop.py").write_text(SHOP)
    env = {"CELERY_BROKER_URL": own_rabbitmq.url, "CELERY_RESULT_BACKEND": redis_server.url}
    worker = stack.worker(own_rabbitmq.url, app="shop", pool=pool, env=env, cwd=tmp_path)
    for strategy in ("pika", "redis"):
        gateway = start_gateway(route("/", "echo", args=[]), "--strategy", strategy)
        assert post(f"{gateway.url}/", b"").body == b"from an older day"
        gateway.stop()

    said = worker.output()
    assert {
        module.removeprefix("appserver.")
        for module, parts in private_parts()
        if f"{parts.names[0]} is missing in this version: {parts.otherwise}" in said
    } == USED[pool]

"""What the gateway does by itself when something around it goes wrong."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.config import route
from tests.support.requests import metric, post
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

CONNECTED = "gateway_broker_connections_total"


@pytest.fixture(scope="module")
def gateway(stack: Stack, broker: RabbitMQ, redis_server: Server) -> Server:
    stack.worker(broker.url, redis_server.url)
    broker.ctl("add_user", "gateway", "gateway")
    broker.ctl("set_permissions", "gateway", ".*", ".*", ".*")
    own = broker.url.replace("guest:guest", "gateway:gateway")
    return stack.gateway("--strategy=pika", "--broker", own, "--result-backend", redis_server.url)


def test_a_deleted_reply_queue_is_replaced(gateway, broker):
    (queue,) = (q for q in broker.ctl("list_queues", "name").split() if "gateway.reply." in q)
    connected = metric(gateway, CONNECTED)

    # It is exclusive: only an operator's or a policy's hand can delete it.
    find = f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>))'
    broker.ctl("eval", f'{{ok, Q}} = {find}, rabbit_amqqueue:delete(Q, false, false, <<"x">>).')

    until(lambda: metric(gateway, CONNECTED) > connected)
    until(lambda: post(f"{gateway.url}/", b"hi").body == b"hi")


def test_a_revoked_permission_is_503_and_bounded_reconnection(gateway, broker):
    connected = metric(gateway, CONNECTED)
    broker.ctl("set_permissions", "gateway", ".*", "^$", ".*")
    # Nobody remembers what was allowed.
    broker.ctl("close_all_user_connections", "gateway", "revoked")
    until(lambda: metric(gateway, CONNECTED) > connected)
    try:
        codes = {post(f"{gateway.url}/").code for _ in range(100)}
    finally:
        broker.ctl("set_permissions", "gateway", ".*", ".*", ".*")

    assert codes == {503}
    assert metric(gateway, CONNECTED) - connected < 20
    until(lambda: post(f"{gateway.url}/", b"hi").body == b"hi")


def test_a_drainer_that_dies_of_a_revoked_right_is_replaced(redis_server, gateway, start_gateway):
    routes = route("/", None) + route("/late", None, queue="nobody", deadline=4)
    drained = start_gateway(routes, "--strategy=gevent")
    with ThreadPoolExecutor(1) as threads, redis_server.client as client:
        late = threads.submit(post, f"{drained.url}/late")
        until(lambda: client.pubsub_channels("celery-task-meta-*"))

        client.execute_command("ACL SETUSER", "default", "-subscribe")
        try:
            client.client_kill_filter(_type="pubsub")
            until(lambda: "drainer failed" in drained.output())
        finally:
            client.execute_command("ACL SETUSER", "default", "+subscribe")

        until(lambda: post(f"{drained.url}/", b"hi").body == b"hi")
        assert late.result().code == 504


def test_what_lies_in_the_working_directory_is_not_imported(stack, broker, redis_server, tmp_path):
    for name in ("redis", "queue", "kombu", "pika"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not what you meant')")
    gateway = stack.spawn(
        "gateway-elsewhere",
        [sys.executable.replace("python", "gateway"), "serve", "--port=0", "--admin-port=0",
         "--broker", broker.url, "--result-backend", redis_server.url],
        cwd=tmp_path,
        ready="subscribed to",
    )  # fmt: skip
    gateway.stop()
    assert "not what you meant" not in gateway.output()

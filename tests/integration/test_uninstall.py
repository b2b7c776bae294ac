"""`gateway uninstall` lists what a deployment has left, and removes it and nothing else."""

from __future__ import annotations

import re
import subprocess

from gateway.history.gateways import KEY
from gateway.stack import free_port
from tests.integration.deliveries import Servers
from tests.support import command
from tests.support.config import route
from tests.support.environment import inherited
from tests.support.requests import post
from tests.support.stack import RabbitMQ, Stack
from tests.support.waiting import until

AUDIT = {"task": "api.core.main", "queue": "audit"}
ROUTES = (
    "journal = 100\n"
    + route("/keyed", None, idempotency="json:/id", queue="orders", also=[AUDIT])
    + route("/kept", None, queue="safe", queue_type="quorum")
    + route("/session", None, queue="session-{query:s}", queue_pattern="session-[a-z]")
)
PREFIX = b"gateway:/::"


def test_only_what_the_deployment_has_left_is_removed(stack: Stack, rabbitmq: RabbitMQ):
    store = stack.redis()
    names = "orders", "audit", "celery"
    servers = Servers(stack, rabbitmq, store, names, 1, app="appserver")
    gateway = servers.gateway("redis", ROUTES)

    def uninstall(*words: str) -> subprocess.CompletedProcess[str]:
        options = ("--config", str(servers.config), *servers.urls, *words)
        return command.run("uninstall", *options, env=inherited())

    with store.client as client:

        def ours() -> list[bytes]:
            # Who counts is a lease that ends by itself.
            found = [key for key in client.scan_iter() if key.startswith(PREFIX)]
            return [key for key in found if not key.endswith(b":counts")]

        client.set("gateway:/:other:c:x", "of another deployment")
        nested = {PREFIX + b"c:c:x", PREFIX + b"failed:{journal}:open"}
        client.mset(dict.fromkeys(nested, "of others, whose prefixes begin with this one"))
        client.set(PREFIX + b"mine", "of somebody who has chosen the same prefix")
        assert post(f"{gateway.url}/keyed", b'{"id": 1}').code == 200
        assert post(f"{gateway.url}/session?s=a", b"a").code == 200
        until(lambda: client.hgetall(KEY))
        ran = uninstall("--yes")
        assert ran.returncode == 1 and "nothing is removed while a gateway runs: " in ran.stderr
        for server in (gateway, servers.worker):
            server.stop()
        before = sorted(ours())
        nobody = f"amqp://127.0.0.1:{free_port()}//"
        ran = uninstall("--broker", f"{nobody};{rabbitmq.url}")  # the second one of a list
        assert ran.returncode == 0 and ran.stderr == ""
        for line in (
            "remove  1 key of " + store.url + ": claims\n",
            "remove  1 key of " + store.url + ": further tasks\n",
            "remove  queue orders: 0 messages, 0 consumers\n",
            "remove  queue safe: 0 messages, 0 consumers\n",
            "remove  exchange gateway.siblings, unless something is bound to it\n",
            "keep    queue celery: 0 messages, 0 consumers; any Celery client may use it\n",
        ):
            assert line in ran.stdout, ran.stdout
        assert sorted(ours()) == before and "orders" in queues(rabbitmq)

        ran = uninstall("--yes")
        assert ran.returncode == 0 and "removed queue audit: 0 messages" in ran.stdout, ran
        assert re.search("^keep +queue safe: .*: rabbitmqctl delete_queue safe$", ran.stdout, re.M)
        assert {*ours()} == {PREFIX + b"mine", *nested} and client.exists("gateway:/:other:c:x")
    assert not {"orders", "audit"} & queues(rabbitmq) and "celery" in queues(rabbitmq)
    assert "gateway.siblings" not in rabbitmq.ctl("list_exchanges", "name").split()
    # To one of these the app server has bound its queue, to the other one a queue that lives still.
    left = re.findall("^remove +(.*), unless", uninstall().stdout, re.M)
    assert left == ["exchange gateway.dynamic", "exchange gateway.dead"]


def queues(rabbitmq: RabbitMQ) -> set[str]:
    return set(rabbitmq.ctl("list_queues", "name").split())

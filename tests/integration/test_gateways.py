"""Gateways on two addresses see each other, by what they differ, and when one is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from redis import Redis

from gateway.history.gateways import KEY
from gateway.stack.server import poll
from tests.support import command
from tests.support.config import route
from tests.support.requests import fetch, metric
from tests.support.stack import Clock, RabbitMQ, Server, Stack, free_port

SOON = 10  # seconds in which a change is seen
CONFIG = """\
secret_key = "of these tests only"
public_url = "http://127.0.0.1:8000"
state_prefix = "two"
""" + route("/orders", None, idempotency="header:idempotency-key")


class Two:
    """The first has the configuration `CONFIG`, the second what `start` gives it, and a clock."""

    def __init__(self, stack: Stack, urls: list[str], directory: Path):
        self._stack, self.urls, self.directory = stack, urls, directory
        self.clock = Clock(directory / "clock")
        self.first = self._gateway("first", CONFIG)
        self.second = self._gateway("second", CONFIG, env=self.clock.env)

    def _gateway(self, name: str, config: str, **options: object) -> Server:
        (self.directory / name).write_text(config)
        return self._stack.gateway("--config", str(self.directory / name), *self.urls, **options)

    def change(self, config: str) -> None:
        """Give the second one another configuration, and start it again."""
        (self.directory / "second").write_text(config)
        self.second.restart()

    def told(self, server: Server | None = None) -> dict:
        return json.loads(fetch(f"{(server or self.first).admin_url}/api/gateways").body)

    def kinds(self) -> dict[str, bool]:
        """Return the kinds by which the second differs from the first, and which are wrong."""
        gateways = self.told()["gateways"]
        found = [each for gateway in gateways for each in gateway["differences"]]
        alone = {} if len(gateways) > 1 else {"alone": True}
        return {each["kind"]: each["wrong"] for each in found} | alone

    def ready(self) -> dict:
        return json.loads(fetch(f"{self.first.admin_url}/readyz").body)

    def warnings(self) -> list[str]:
        """Return those of the first one that are not about workers, of which there is none."""
        return [each for each in self.ready()["warnings"] if "no worker" not in each]

    def page(self) -> str:
        return fetch(f"{self.first.admin_url}/").body.decode()


@pytest.fixture
def redis(stack: Stack) -> Server:
    return stack.redis()


@pytest.fixture
def two(stack: Stack, rabbitmq: RabbitMQ, redis: Server, tmp_path: Path) -> Two:
    return Two(stack, ["--broker", rabbitmq.url, "--result-backend", redis.url], tmp_path)


def test_each_sees_the_other_and_by_what_it_differs(two, redis):
    for server in (two.first, two.second):
        assert poll(lambda server=server: len(two.told(server)["gateways"]) == 2, SOON)
    assert two.kinds() == {} and two.warnings() == []
    told = two.told()
    assert told["problem"] == "" and [each["is_lost"] for each in told["gateways"]] == [False] * 2

    two.change(CONFIG.replace("/orders", "/returns").replace("tests", "others"))
    assert poll(lambda: two.kinds() == {"secret_key": True, "routes": True}, SOON)
    assert two.ready()["ready"]
    assert "/orders only here; /returns only there" in two.warnings()[1]
    page = two.page()
    assert "is not as this gateway" in page and "/returns only there" in page
    assert "of these others" not in page
    with Redis.from_url(redis.url) as client:
        assert b"others only" not in b"".join(client.hvals(KEY))
    assert metric(two.first, "gateway_differing", kind="routes") == 1
    assert metric(two.first, "gateway_differing", kind="clock") == 0

    done = command.run("check", "--config", f"{two.directory}/first", *two.urls)
    found = [each for each in done.stdout.splitlines() if "another gateway differs" in each]
    assert len(found) == 2 and all(each.startswith("warn  state redis://") for each in found)

    two.clock.step(-30)
    two.change("idle_timeout = 70.0\n" + CONFIG)
    assert poll(lambda: two.kinds() == {"clock": True, "settings": False}, SOON)


def test_one_that_is_killed_is_lost_and_one_that_ends_is_gone(two, redis):
    assert poll(lambda: len(two.told()["gateways"]) == 2, SOON)
    other = f"{two.first.admin_url}/?gateway={two.told(two.second)['asked']}"
    assert fetch(other).status == 200
    two.second.kill()
    assert poll(lambda: two.kinds() == {"lost": True}, SOON)
    assert "has not been heard of" in two.warnings()[0] and "is lost" in two.page()
    assert fetch(other).status == 404  # and no figures of this one
    two.second.restart()
    assert poll(lambda: two.kinds() == {}, SOON)

    # What somebody else has written there is removed, and hides no gateway.
    lines = {"a": "no line", "b": "", "c": 'inf {"name": "c"}', "d": 'nan {"name": "d"}'}
    with Redis.from_url(redis.url) as client:
        client.hset(KEY, mapping={**lines, "e": f"{time.time():.6f} " + "[" * 100_000})
        assert poll(
            lambda: set(client.hkeys(KEY)).isdisjoint(each.encode() for each in lines), SOON
        )
        assert poll(lambda: client.hlen(KEY) == 3, SOON)
    told = two.told()
    assert (told["problem"], len(told["gateways"])) == ("", 2)

    two.second.stop()
    assert poll(lambda: len(two.told()["gateways"]) == 1, SOON)

    # Without the state server nothing is known of others, and nothing else is different.
    redis.kill()
    assert poll(lambda: "does not answer" in two.told()["problem"], SOON)
    redis.restart()
    assert poll(lambda: two.told()["problem"] == "", SOON)
    assert len(two.told()["gateways"]) == 1
    assert "is lost" not in two.page() and "Others are not known" not in two.page()


def test_without_a_state_server_a_gateway_knows_itself(stack, rabbitmq):
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    for backend in (nobody, ""):
        gateway = stack.gateway(
            "--strategy=pika", "--broker", rabbitmq.url, "--result-backend", backend
        )
        told = json.loads(fetch(f"{gateway.admin_url}/api/gateways").body)
        assert [each["name"] for each in told["gateways"]] == [told["asked"]] and told["problem"]
        assert b"Others are not known" in fetch(f"{gateway.admin_url}/").body
        gateway.stop()
        assert "Traceback" not in gateway.output()

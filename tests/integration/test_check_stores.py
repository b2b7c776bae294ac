"""`gateway check` of the Redis with results, and of the one with claims and the journal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest
import redis

from gateway.cli.checks import stores
from tests.integration.checking import KEYED, ROUTE, Line, check, servers_at, write
from tests.integration.deliveries import run, send
from tests.support.stack import RabbitMQ, Server, Stack, free_port


@pytest.fixture
def client(results: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(results.url, decode_responses=True) as client:
        settings = {"maxmemory": 0, "maxmemory-policy": "noeviction", "appendonly": "no"}
        yield client
        client.replicaof("NO", "ONE")
        for name, value in settings.items():
            client.config_set(name, value)
        client.flushall()


@pytest.fixture(scope="module", autouse=True)
def worker(stack: Stack, rabbitmq: RabbitMQ, results: Server) -> Server:
    return stack.worker(rabbitmq.url, results.url)


def apply(client: redis.Redis, remedy: str) -> None:
    """Run the first command that a remedy names."""
    command = re.search(r"(?:CONFIG SET|ACL SETUSER) .*?(?=, |;|$)", remedy)[0]
    client.execute_command(*command.replace("NAME", "limited").split())


@pytest.mark.parametrize("place", ["results", "state"])
def test_a_redis_that_is_away(rabbitmq, results, tmp_path, place):
    dead = f"redis://:sesame@127.0.0.1:{free_port()}/0"
    config = write(tmp_path, (f'state_url = "{dead}"\n' if place == "state" else "") + ROUTE)
    backend = dead if place == "results" else results.url

    checked = check(*config, *servers_at(rabbitmq.url, backend))

    line = checked.of(place)
    assert checked.code == 1 and line.status == "FAIL" and "sesame" not in str(checked)
    name = "GATEWAY_RESULT_BACKEND" if place == "results" else "GATEWAY_STATE_URL"
    assert "start it, or correct" in line.text and name in line.text


@pytest.mark.parametrize("own", [True, False], ids=["state_url", "result_backend"])
def test_the_state_line_names_the_setting_of_its_url(rabbitmq, results, client, tmp_path, own):
    client.config_set("appendonly", "yes")
    dead = f"redis://127.0.0.1:{free_port()}/0"
    origin = "(state_url)" if own else "(result_backend, as state_url is not set)"

    def state(url: str) -> Line:
        config = write(tmp_path, (f'state_url = "{url}"\n' if own else "") + KEYED)
        return check(*config, *servers_at(rabbitmq.url, results.url if own else url)).of("state")

    well, away = state(results.url), state(dead)

    assert (well.status, well.check) == ("ok", f"state {results.url} {origin}")
    assert (away.status, away.check) == ("FAIL", f"state {dead} {origin}")
    names = ["state_url (GATEWAY_STATE_URL)"]
    names += [] if own else ["result_backend (GATEWAY_RESULT_BACKEND, --result-backend)"]
    assert [name for name in names if name not in away.text] == []


@pytest.mark.parametrize("place", ["results", "state"])
def test_a_redis_that_evicts(rabbitmq, redis_server, results, client, tmp_path, place):
    # Given a policy that makes no difference yet, without a limit,
    client.config_set("maxmemory-policy", "volatile-lru")
    client.config_set("appendonly", "yes")
    config = write(tmp_path, (f'state_url = "{results.url}"\n' if place == "state" else "") + ROUTE)
    args = [*config, *servers_at(rabbitmq.url, results.url)]
    assert check(*args).well

    # when there is one,
    client.config_set("maxmemory", "512mb")
    checked = check(*args)

    line = checked.worst(place if place == "results" else "results")
    assert checked.code == 1 and line.status == "FAIL" and "volatile-lru" in line.text
    apply(client, line.text)
    assert check(*args).well


def test_a_redis_of_claims_alone_that_evicts(rabbitmq, redis_server, client, results, tmp_path):
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", "512mb")
    config = write(tmp_path, f'state_url = "{results.url}"\n' + KEYED)
    checked = check(*config, *servers_at(rabbitmq.url, redis_server.url))
    assert checked.code == 1 and "allkeys-lru" in checked.worst("state").text


def test_how_full_it_is(rabbitmq, results, client):
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used * 4)
    args = servers_at(rabbitmq.url, results.url)
    assert re.search(r"of \d\.\d MiB used \(\d\d%\)", check(*args).of("results").text)

    for n in count():
        if client.info("memory")["used_memory"] > used * 3.8:
            break
        client.set(f"filling-{n}", bytes(10_000))
    checked = check(*args)

    line = checked.of("results")
    assert checked.code == 1 and "nearly full" in line.text
    apply(client, line.text)
    assert check(*args).well


def test_claims_that_are_not_on_disk_are_a_warning(rabbitmq, results, client, tmp_path):
    args = [*write(tmp_path, KEYED), *servers_at(rabbitmq.url, results.url)]
    checked = check(*args)
    line = checked.of("state")
    assert (checked.code, line.status) == (0, "warn") and "nothing on disk" in line.text
    apply(client, line.text)
    assert check(*args).well
    assert client.keys("gateway:*") == []


def test_a_replica_and_a_full_redis_are_told(rabbitmq, redis_server, results, client, tmp_path):
    config = write(tmp_path, f'state_url = "{results.url}"\n' + KEYED)
    args = [*config, *servers_at(rabbitmq.url, redis_server.url)]
    client.config_set("maxmemory", 1)
    assert "give it more memory" in str(check(*args).lines)
    client.config_set("maxmemory", 0)
    client.replicaof("127.0.0.1", redis_server.port)
    line = check(*args).of("state")
    assert line.status == "FAIL" and "name the primary" in line.text


@pytest.mark.parametrize(
    ("rights", "check_name"),
    [
        (("+@all", "-psubscribe", "~*", "&*"), "results"),
        (("+@all", "-strlen", "~*", "&*"), "results"),
        (("+@all", "-set", "~*", "&*"), "state"),
        (("+@all", "-eval", "~*", "&*"), "state"),
        (("+@all", "-time", "~*", "&*"), "state"),
        (("+ping", "+hello", "+client", "+info"), "results"),
    ],
)
def test_a_permission_that_is_missing(rabbitmq, results, client, tmp_path, rights, check_name):
    client.acl_setuser("limited", enabled=True, passwords="+sesame", reset=True)
    client.execute_command("ACL", "SETUSER", "limited", *rights)
    url = results.url.replace("//", "//limited:sesame@")
    client.config_set("appendonly", "yes")
    args = [*write(tmp_path, KEYED), *servers_at(rabbitmq.url, url)]

    checked = check(*args)

    line = checked.worst(check_name)
    assert checked.code == 1 and "sesame" not in str(checked)
    apply(client, line.text)
    mended = check(*args)
    client.acl_deluser("limited")
    assert mended.code == 0 and mended.of(check_name).status in ("ok", "skip")


@pytest.mark.parametrize("strategy", ["redis", "pika"])
def test_no_dangerous_commands_are_needed(stack, rabbitmq, results, client, tmp_path, strategy):
    """As managed servers give them: no INFO, CONFIG, KEYS, ROLE, CLIENT KILL."""
    client.acl_setuser("limited", enabled=True, passwords="+sesame", reset=True)
    rights = "+@all", "-@dangerous", "~*", "&*"
    client.execute_command("ACL", "SETUSER", "limited", *rights)
    client.config_set("appendonly", "yes")
    url = results.url.replace("//", "//limited:sesame@")
    queue = f"managed-{strategy}"
    keyed = KEYED.replace("[[routes]]", f'[[routes]]\nqueue = "{queue}"')
    config = write(tmp_path, f"journal = 10\n{keyed}")
    servers = servers_at(rabbitmq.url, url)
    worker = stack.worker(rabbitmq.url, url, queues=[queue])
    gateway = stack.gateway(*config, *servers, f"--strategy={strategy}")
    key = f"Idempotency-Key: {strategy}"
    answers = [run(send(gateway, "/", "body", key)) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"body")] * 2
    # What the check may not see, it says, and it is no failure.
    checked = check(*config, *servers, f"--strategy={strategy}")
    assert checked.code == 0, checked
    said = " ".join(line.text for line in checked.lines)
    assert "not seen are its memory" in said and "+info" in said
    assert "CONFIG is not allowed" in said
    for server in (gateway, worker):
        assert "NOPERM" not in server.output() and "permission" not in server.output()
        server.stop()
    client.acl_deluser("limited")


@pytest.mark.parametrize("secret", ["limited:wrong@", ""])
def test_a_wrong_password(rabbitmq, results, client, secret):
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">sesame", "+@all", "~*")
    client.config_set("requirepass", "sesame")
    url = results.url.replace("//", f"//{secret}")
    try:
        checked = check(*servers_at(rabbitmq.url, url))
    finally:
        client.config_set("requirepass", "")
        client.acl_deluser("limited")
    line = checked.of("results")
    assert line.status == "FAIL" and "correct user and password in result_backend" in line.text


def test_a_database_that_is_not_there(rabbitmq, results):
    line = check(*servers_at(rabbitmq.url, results.url.replace("/0", "/99"))).of("results")
    assert line.status == "FAIL" and "correct result_backend" in line.text


def test_no_store_is_needed_where_workers_reply(rabbitmq, results):
    checked = check(*servers_at(rabbitmq.url, ""), "--strategy", "pika")
    assert checked.well and "only reply" in checked.of("results").text


@pytest.mark.parametrize(
    ("version", "old"), [("5.0.7", True), ("6.0.20", True), ("6.2.0", False), ("7.0.15", False)]
)
def test_a_redis_that_is_too_old(version, old):
    found = list(stores.judge("results", {"redis_version": version, "used_memory": 1}))
    assert [finding.remedy for finding in found] == ["install 6.2 or newer"] * old


def test_valkey_is_told_by_its_name(rabbitmq, stack, start):
    server = start(stack.embedded)
    text = check(*servers_at(rabbitmq.url, server.url)).of("results").text
    server.stop()
    assert text.startswith("Valkey ")

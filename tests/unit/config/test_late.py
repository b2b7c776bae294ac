"""Where late answers go: each sender's block, and what is refused."""

from __future__ import annotations

import json

import pytest

from gateway.config.late import Late, senders
from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import ConfigError
from gateway.process.handover import Start, read, write

ROUTE = '[[routes]]\npath = "/a"\nanswer = "accept"\nfallback = "soon"\n'
KEYS = 'secret_key = "of these tests only"\npublic_url = "https://hooks.example.com"\n'


def problems(tmp_path, late: str, before: str = "") -> list[str]:
    path = tmp_path / "gateway.toml"
    path.write_text(KEYS + before + ROUTE + late)
    with pytest.raises(ConfigError) as error:
        load({}, {}, path)
    return [line.removeprefix(f"{path}: ") for line in error.value.problems]


def delivery(body: object) -> Delivery:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Delivery("1", "/a", {}, {}, "", {}, data, "", 0.0)


@pytest.mark.parametrize("name", senders())
def test_each_senders_block_survives_the_way_to_a_child(name):
    source = {"scheme": "github", "secrets": "s", "app_id": "a", "app_secret": "b"}
    route = {"path": "/a", "source": "s", "answer": "wait-then-accept", "late": name}
    config = Config(sources={"s": source}, routes=[{**route, "fallback": ""}])

    again = read(write(Start(config, [], 0))).config

    assert again.routes[0].late == config.routes[0].late
    assert again.routes[0].late.key == config.routes[0].late.key
    assert not again.routes[0].late.own_hosts
    assert again.routes[0].late.sources  # what was read, and when


def test_a_hosts_block_is_its_own_after_the_way_to_a_child_too():
    late = {"like": "slack", "hosts": ["127.0.0.1:9"]}
    config = Config(routes=[{"path": "/a", "answer": "accept", "fallback": "", "late": late}])

    assert read(write(Start(config, [], 0))).config.routes[0].late.own_hosts == {"127.0.0.1:9"}


@pytest.mark.parametrize(
    ("name", "body", "found"),
    [
        ("slack", {"response_url": "https://a"}, ["https://a"]),
        ("slack", "command=%2Fgo&response_url=https%3A%2F%2Fb", ["https://b"]),
        ("slack", "payload=%7B%22response_url%22%3A%22https%3A%2F%2Fc%22%7D", ["https://c"]),
        ("feishu-card", {"event": {"token": "c-1"}}, ["c-1"]),
        ("feishu-card", {"token": "c-2"}, ["c-2"]),
        ("telegram", {"callback_query": {"message": {"chat": {"id": -7}}}}, [-7]),
        ("wechat", "<xml><FromUserName><![CDATA[o1]]></FromUserName></xml>", ["o1"]),
        ("wechat", {"FromUserName": "o2"}, ["o2"]),
    ],
)
def test_addresses_are_found_wherever_the_sender_has_them(name, body, found):
    assert [*Late.model_validate(name).values(delivery(body)).values()] == found


def test_an_agents_id_is_a_number():
    body = "<xml><FromUserName>u</FromUserName><AgentID>10</AgentID></xml>"
    values = Late.model_validate("wecom").values(delivery(body))
    assert values == {"xml:AgentID|int": 10, "xml:FromUserName": "u"}


@pytest.mark.parametrize(
    "body", ["", "{", "<xml", {"response_url": ["https://a"]}, [1], {"response_url": "x" * 5_000}]
)
def test_a_delivery_without_an_address_has_no_values(body):
    for name in senders():
        assert Late.model_validate(name).values(delivery(body)) == {}


@pytest.mark.parametrize(
    ("late", "problem"),
    [
        ('late = "slak"', "there is no such sender; did you mean slack?"),
        ("late = 5", "has to be a table"),
        ('late = { url = "https://a/" }', "late.hosts (path /a): is needed"),
        ('late = { url = "https://a/", hosts = ["b"] }', ": its host is none of `hosts`: b"),
        ('late = { url = "{jsn:/a}", hosts = ["b"] }', "did you mean json:/pointer?"),
        ('late = { url = "{json:/a}", hosts = ["b/"] }', "a host is written as api.example.com"),
        ('late = { url = "https://a/{answer}", hosts = ["a"] }', "the answer goes into the body"),
        ('late = { url = "https://a/{token}", hosts = ["a"] }', "late.token (path"),
        ('late = { like = "slack", tries = 0 }', "late.tries (path /a): has to be 1 or more"),
        ('late = { like = "slack", methd = "PUT" }', "did you mean method?"),
        ('late = "wechat"', "sending needs app_id and app_secret; set it in a source"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, late, problem):
    (found,) = problems(tmp_path, late)

    assert found.startswith("routes[0].late")
    assert problem in found


def test_only_what_is_answered_before_its_result_can_be_late(tmp_path):
    (found,) = problems(tmp_path, 'late = "slack"', '[[routes]]\npath = "/b"\nlate = "slack"\n')

    assert "routes[0].late (path /b): only what was answered without its result" in found

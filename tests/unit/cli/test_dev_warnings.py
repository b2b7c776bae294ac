"""What `gateway dev` says of tasks that the worker of an app does not have, and of variables."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.cli.commands.dev import _start_servers
from gateway.cli.local.first_task import Described
from gateway.cli.local.plan import Plan
from gateway.cli.local.welcome import warnings, welcome
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.stack import Stack

SOURCES = {"hub": {"scheme": "github", "secrets": "sixteen letters!"}}


def test_a_missing_task_is_told_with_the_deliveries_that_need_it(tmp_path):
    routes = [
        {"path": "/hub", "source": "hub", "events": ["push", "issues.*"], "task": "ci.biuld"},
        {"path": "/hub", "source": "hub", "task": "ci.note", "also": [{"task": "mail"}]},
        {"path": "/mails", "task": "mail"},
    ]
    config = Config(sources=SOURCES, routes=routes)

    said = warnings(config, "ci", Described({"ci.build": "", "ci.note": ""}, False), tmp_path)

    assert said == [
        "warning: the app ci has no task ci.biuld, so /hub (push, issues.*) answers 502; "
        "did you mean ci.build?",
        "warning: the app ci has no task mail, so /mails answers 502 and /hub does not start it; "
        "it has ci.build, ci.note",
    ]


def test_events_that_a_sender_does_not_have_are_told(tmp_path):
    routes = [{"path": "/hub", "source": "hub", "events": ["pusch"], "task": "mail"}]
    (line,) = warnings(
        Config(sources=SOURCES, routes=routes), "ci", Described({"mail": ""}, True), tmp_path
    )
    assert line.startswith("warning: route /hub: github has no events pusch") and "push" in line


def test_arguments_that_a_task_does_not_take_are_told(tmp_path):
    routes = [{"path": "/orders", "task": "shop.charge", "kwargs": {"curency": "json:/currency"}}]
    told = {"shop.charge": "(currency=...)", "shop.refund": "(order)"}

    said = warnings(Config(routes=routes), "shop", Described(told, True), tmp_path)

    assert said == [
        "warning: task shop.charge: the app shop, route /orders: it takes `currency`, and gets "
        "`curency` (it is shop.charge(currency=...)); correct args or kwargs in the route"
    ]


def welcomed(config: Config, file: Path | None = None) -> list[str]:
    server = SimpleNamespace(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:2")
    return welcome(config, Plan("amqp://", "redis://", file, False, {}, {}), "shop", server, {})


def test_the_variables_that_other_commands_need_are_named(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text('[sources.hub]\nsecrets = [{ env = "OLD" }, { env = "NEW" }, { file = "F" }]\n')
    lines = welcomed(Config(sources=SOURCES), file)
    assert "These commands read the variables NEW, OLD, too: set the same there." in lines


def test_a_few_sources_have_a_command_and_the_others_are_named():
    names = ["a", "b", "c", "d", "e"]
    routes = [{"path": f"/{name}", "source": name, "task": "mail"} for name in names]
    lines = welcomed(Config(sources=dict.fromkeys(names, SOURCES["hub"]), routes=routes))
    assert "    gateway send --as c http://127.0.0.1:1/c" in lines
    assert "    as well: d, e" in lines


def test_a_server_that_is_not_there_is_told_before_anything_is_started(monkeypatch):
    asked = []

    def connect(address: tuple[str, int], _: float) -> socket.socket:
        asked.append(address)
        if address[0] == "no":
            raise ConnectionRefusedError
        return socket.socket()

    monkeypatch.setattr("gateway.cli.commands.dev.socket.create_connection", connect)
    urls = "amqp://no//;amqps://u:secret@yes//", "redis+socket:///none"
    with Stack() as stack:
        assert _start_servers(stack, Plan(*urls, None, False, {}, {})) == (*urls, [])
        assert asked == [("no", 5672), ("yes", 5671)]
        with pytest.raises(ConfigError) as error:
            _start_servers(stack, Plan("amqp://u:secret@no:7//", "", None, False, {}, {}))
    (problem,) = error.value.problems
    assert problem.startswith("nothing listens at the broker") and "secret" not in problem
    assert problem.endswith("(GATEWAY_BROKER_URL, --broker) to have a private one started")

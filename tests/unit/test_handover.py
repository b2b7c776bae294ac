"""What a parent hands over, a child reads: the same configuration, and nothing that is default."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process import child_handle, health
from gateway.process.child import Child
from gateway.process.child_handle import ChildHandle
from gateway.process.handover import Start, read, write

ROUTES = [{"path": "/"}, {"path": "/in/{shop}", "source": "shop", "tries": 2, "retry_after": 5}]
SETTINGS = {
    "broker_url": ["amqp://u:secret@a", "amqp://b"],
    "uds": "/run/gateway.sock",
    "tls": {"verify": False},
    "routes": ROUTES,
    "sources": {"shop": {"scheme": "wechat", "secrets": ["one", "two"], "rate": 5}},
}


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_a_configuration_is_the_same_after_it(settings):
    config = Config.model_validate(settings)

    start = read(write(Start(config, [3, 4], 5)))

    assert start == Start(config, [3, 4], 5)
    there = [route.deadline for route in start.config.routes]
    assert there == [route.deadline for route in config.routes]
    assert start.config.brokers == config.brokers


def test_only_what_was_set_is_handed_over():
    handed = json.loads(write(Start(Config.model_validate(SETTINGS), [], 0)))["config"]

    assert handed.keys() == SETTINGS.keys()
    assert handed["routes"] == ROUTES
    assert handed["broker_url"] == SETTINGS["broker_url"]


@pytest.mark.parametrize("data", [b"\x80\x04\x95", b"", b"[]", b"{}", b'{"version": null}'])
def test_what_is_no_handover_is_told_as_another_version(data):
    with pytest.raises(ConfigError, match="version (unknown|None) of the configuration"):
        read(data)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "the parent sends version 2 of the configuration"),
        ({"config": {"colour": "red"}}, "colour: there is no such setting"),
        ({"config": {"port": "x"}}, "port: has to be a whole number"),
    ],
)
def test_what_this_version_cannot_use_is_told_with_the_remedy(change, problem):
    data = {**json.loads(write(Start(Config(), [], 0))), **change}

    with pytest.raises(ConfigError, match=problem) as told:
        read(json.dumps(data).encode())

    assert "restart the gateway" in str(told.value)


async def test_a_child_that_ends_at_once_is_asked_without_a_line_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(child_handle, "_CHILD", "raise SystemExit(78)")
    child = ChildHandle(Config(), [])
    await child.start()
    # Many ask while it starts, and it ends before any of them has an answer.
    answers = await health.ask([child] * 50)
    assert {checks for _, checks in answers} == {None}
    assert await child.wait() == 78
    assert await child.ask() is None
    child.close()
    assert caplog.records == []


async def test_a_parent_of_another_version_reads_what_a_child_tells():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    child: Any = SimpleNamespace(
        held=lambda: {"bytes": 0},
        _metrics=SimpleNamespace(set=lambda *_: None),
        _relay=SimpleNamespace(checks=lambda: {"broker": ""}),
        _server=SimpleNamespace(listening=True, draining=False),
        _workers=SimpleNamespace(warnings=["no worker"]),
        _stopping=asyncio.Event(),
    )
    ours.sendall(b"7\n")
    ours.shutdown(socket.SHUT_WR)
    await Child._answer_parent(child, reader, writer)
    writer.close()
    await writer.wait_closed()
    with ours, ours.makefile("rb") as lines:
        # The versions before this one read so, until the number is theirs.
        answers = dict(map(json.loads, lines))
    assert answers == {0: {"warnings": ["no worker"]}, 7: {"broker": ""}}


async def test_what_a_child_of_another_version_tells_is_read(monkeypatch):
    told = ["[0, {}]", '[0, {"warnings": ["none"]}, 2]', "[9, {}, 3]", '[1, {"a": ""}, 4]']
    program = f"""
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as control, control.makefile("rwb") as parent:
    parent.read(int.from_bytes(parent.read(4)))
    parent.readline()
    parent.writelines(line.encode() + b"\\n" for line in {told})
    parent.flush()
    parent.read()
"""
    monkeypatch.setattr(child_handle, "_CHILD", program)
    child = ChildHandle(Config(), [])
    await child.start()
    assert await child.ask(10.0) == {"a": ""}
    assert child.warnings == ["none"]
    child.signal(signal.SIGKILL)
    await child.wait()
    child.close()

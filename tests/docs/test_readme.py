"""README's commands, run as they stand there."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.cli import COMMANDS
from tests.docs.test_documents import ROOT, text
from tests.support.stack import free_port

SECONDS = 60  # until the first answer


def output_until(process: subprocess.Popen, wanted: str) -> str:
    """Read what `process` prints until `wanted` comes; fail when it ends or takes too long."""
    end, seen = time.monotonic() + SECONDS, ""
    while wanted not in seen:
        ready, _, _ = select.select([process.stdout], [], [], end - time.monotonic())
        some = process.stdout.read1().decode() if ready else ""
        assert some, f"{wanted!r} did not come:\n{seen[-3000:]}"
        seen += some
    return seen


@contextmanager
def running(*words: str, **options: Any) -> Iterator[tuple[subprocess.Popen, str]]:
    """Run `gateway dev` with these words, ended by Ctrl-C; yield it, and what it has printed."""
    dev = subprocess.Popen(
        [sys.executable, "-m", "gateway", "dev", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip
    try:
        yield dev, output_until(dev, "Ctrl-C stops everything")
        dev.send_signal(signal.SIGINT)
        rest = dev.communicate(timeout=60)[0].decode()
        assert dev.returncode == 0 and "Traceback" not in rest
    finally:
        dev.kill()
        dev.communicate()


def commands() -> list[str]:
    """Return the README's commands for a shell, but for `make`'s."""
    blocks = re.findall(r"```sh\n(.*?)```", text("README.md"), re.S)
    return [line for line in "".join(blocks).splitlines() if not line.startswith("make ")]


def shell(command: str) -> str:
    """Run `command` in the checkout; return what it prints."""
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("broker", ["embedded", pytest.param("rabbitmq", marks=pytest.mark.long)])
def test_one_command_and_the_printed_curl_lines(broker):
    """`make run` is `gateway dev`; free ports stand in for 8000 and 9464."""
    assert ".venv/bin/gateway dev" in text("Makefile")
    port = free_port()
    ports = ["--port", str(port), "--admin-port", str(free_port())]
    with running("--broker", broker, *ports, cwd=ROOT) as (_, seen):
        plain, wechat = re.findall(r"^    (curl .*)$", seen, re.M)
        assert shell(plain) == "hello"
        reply = ElementTree.fromstring(shell(wechat))
        hello, sent = (shell(line.replace(":8000/", f":{port}/")) for line in commands())

    # A passive reply, to whom the message came from.
    found = {element.tag: element.text for element in reply}
    message = dict(re.findall(r"<(\w+)><!\[CDATA\[(.*?)]]></", wechat))
    assert found["ToUserName"] == message["FromUserName"] != message["ToUserName"]
    assert found["FromUserName"] == message["ToUserName"]
    assert found["Content"] == "You said: hello"
    assert hello == "hello"
    assert sent.startswith("200 OK\n") and "You said: hello" in sent
    assert "Traceback" not in seen
    # The README shows the very line that is printed, on the default port.
    assert plain.replace(f":{port}/", ":8000/") == commands()[0]


def test_the_figures_of_the_promises_stand_in_the_documents_that_they_link_to():
    section = text("README.md").split("\n## What it promises\n")[1].split("\n## ")[0]
    for promise in re.split(r"\n(?=\d\. )", section):
        linked = "".join(text(name) for name in re.findall(r"\]\((docs/[\w.]+)", promise))
        figures = re.findall(r"\b\d[\d,]*[,.]\d+\b", promise)
        assert [each for each in figures if each not in linked] == []


def test_dev_serves_a_file_with_a_queue_and_a_variable_of_ones_own(tmp_path):
    port, file = str(free_port()), tmp_path / "gateway.toml"
    file.write_text(
        '[[routes]]\npath = "/x"\nqueue = "mine"\ntask = { env = "TASK" }\n'
        # It signs the URL: dev makes up the public one where the file has none.
        '[[routes]]\npath = "/y"\nsource = "y"\n'
        '[sources.y]\nscheme = "twilio"\nsecrets = "a secret"\n'
    )
    words = ["--port", port, "--config", str(file), "--admin-port", str(free_port())]
    with running(*words, env={**os.environ, "TASK": "appserver.tasks.echo"}):
        url = f"http://127.0.0.1:{port}/x"
        assert urllib.request.urlopen(url, data=b"hello", timeout=30).read() == b"hello"


def test_the_commands_exist():
    documents = text("README.md") + text("docs/start.md")
    assert set(re.findall(r"^    gateway ([a-z]+)", documents, re.M)) - set(COMMANDS) == set()


def test_the_packages_that_the_tests_install_are_listed():
    script = text("tests/install-servers.sh")
    (programs,) = re.findall(r"for program in (.+); do", script)
    packages = dict(re.findall(r"(\w+)\) package=([\w-]+)", script))
    (listed,) = re.findall(r"installs Debian's (.+?)\s+where", text("README.md"), re.S)
    names = re.split(r",\s+|\s+and\s+", listed)
    assert names == [packages.get(each, each) for each in programs.split()]

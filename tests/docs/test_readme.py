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
from pathlib import Path

import pytest

from gateway.stack import free_port
from tests.docs.test_documents import ROOT, text

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


@pytest.mark.parametrize("broker", ["embedded", "rabbitmq"])
def test_one_command_and_the_printed_curl_line(broker):
    """`make run` is `gateway dev`; free ports stand in for 8000 and 8001."""
    assert ".venv/bin/gateway dev" in text("Makefile")
    ports = ["--port", str(free_port()), "--admin-port", str(free_port())]
    dev = subprocess.Popen(
        [sys.executable, "-m", "gateway", "dev", "--broker", broker, *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        seen = output_until(dev, "Ctrl-C stops everything")
        (line,) = re.findall(r"^    (curl .*)$", seen, re.M)
        answer = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)
        assert answer.stdout == "hello"
        dev.send_signal(signal.SIGINT)
        rest = dev.communicate(timeout=60)[0].decode()
    finally:
        dev.kill()
        dev.wait()

    assert dev.returncode == 0
    assert "Traceback" not in seen + rest
    # The README shows the very line that is printed, on the default port.
    assert re.sub(r":\d+/", ":8000/", line) in text("README.md")


def test_dev_serves_a_file_with_a_queue_and_a_variable_of_ones_own(tmp_path):
    port, file = str(free_port()), tmp_path / "gateway.toml"
    file.write_text('[[routes]]\npath = "/x"\nqueue = "mine"\ntask = { env = "TASK" }\n')
    command = [sys.executable, "-m", "gateway", "dev", "--port", port, "--config", str(file)]
    dev = subprocess.Popen(
        [*command, "--admin-port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TASK": "appserver.tasks.echo"},
    )
    try:
        output_until(dev, "Ctrl-C stops everything")
        url = f"http://127.0.0.1:{port}/x"
        assert urllib.request.urlopen(url, data=b"hello", timeout=30).read() == b"hello"
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=60)
    finally:
        dev.kill()
        dev.wait()


def test_the_commands_of_the_readme_exist():
    gateway = Path(sys.executable).parent / "gateway"
    for command in sorted(set(re.findall(r"^    gateway ([a-z]+)", text("README.md"), re.M))):
        ran = subprocess.run([gateway, command, "--help"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr

"""The package in examples/plugin, installed: its strategy, its sender and its command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.config import route
from tests.support.stack import RabbitMQ, Server, Stack

ROOT = Path(__file__).parents[2]
CONFIG = """\
[sources.shop]
scheme = "acme"
secrets = ["a secret of Acme"]
""" + route("/acme", None, source="shop")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the package can be imported, as after `pip install`."""
    directory = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(ROOT / "examples" / "plugin", directory / "source")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    argv += ["--no-index", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*argv, directory / "target", source], check=True)
    (directory / "gateway.toml").write_text(CONFIG)
    config = str(directory / "gateway.toml")
    return {"PYTHONPATH": f"{ROOT}:{directory / 'target'}", "GATEWAY_CONFIG": config}


def run(env: dict[str, str], *args: str) -> str:
    argv = [sys.executable, "-m", "gateway", *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


def test_the_strategy_and_the_sender_are_used_by_their_names(
    stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, installed: dict[str, str]
):
    # Given a gateway with the package's strategy, and a route of its sender,
    urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
    worker = stack.worker(rabbitmq.url, redis_server.url)
    gateway = stack.gateway("--strategy=queries", *urls, env=installed)
    url = f"{gateway.url}/acme"
    # when a delivery is signed as the sender would, it is answered with its task's result;
    send = ("send", "--as", "shop", url, "--data", '{"id": "1", "type": "paid"}')
    assert "200" in run(installed, *send)
    # and what is signed with another secret is refused.
    other = {**installed, "GATEWAY_CONFIG": ""}
    argv = [sys.executable, "-m", "gateway", "send", "--as", "acme", "--secret", "x", url]
    refused = subprocess.run(argv, env=other, capture_output=True, text=True)
    assert "401" in refused.stdout + refused.stderr
    for server in (gateway, worker):
        server.stop()


def test_the_command_runs(installed: dict[str, str]):
    assert run(installed, "paths").split() == ["/acme", "api.core.main"]


def test_a_strategy_that_cannot_be_imported_is_named_by_the_process(stack, installed, tmp_path):
    # Given an import that fails in the strategy's module,
    target = Path(installed["PYTHONPATH"].partition(":")[2])
    broken = shutil.copytree(target, tmp_path / "broken")
    module = broken / "gateway_example" / "queries.py"
    module.write_text(f"{module.read_text()}\nimport a_module_that_nobody_wrote\n")
    env = {"PYTHONPATH": f"{ROOT}:{broken}"}
    # when a gateway is to use it, its process says so, without a traceback.
    argv = [sys.executable, "-m", "gateway", "serve", "--strategy=queries"]
    argv += ["--port", "0", "--admin-port", "0"]
    why = "ModuleNotFoundError: No module named 'a_module_that_nobody_wrote'"
    gateway = stack.spawn("gateway", argv, env=env, ready=why)
    gateway.kill()
    assert "the package gateway-example 1.0 brings queries" in gateway.output()
    assert "Traceback" not in gateway.output()

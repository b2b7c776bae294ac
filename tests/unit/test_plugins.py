"""What other packages bring: found by name, and named where it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GROUPS = ("commands", "sources", "strategies")
COMMAND = '"""Greet."""\ndef options(parser): pass\ndef run(arguments): print("hello"); return 0\n'
SOURCE = '[sources.shop]\nscheme = "theirs"\nsecrets = ["a secret"]\n'


@pytest.fixture
def bring(tmp_path: Path):
    """Make an installed package whose module `theirs` is all that it brings."""

    def bring(text: str, name: str = "theirs") -> dict[str, str]:
        (tmp_path / "theirs.py").write_text(text)
        info = tmp_path / "a_package-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 2.0\n")
        points = "".join(f"[celery_gateway.{group}]\n{name} = theirs\n" for group in GROUPS)
        (info / "entry_points.txt").write_text(points)
        return {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}

    return bring


def run(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gateway", *args]
    directory = env["PYTHONPATH"].rpartition(":")[2]  # the test's own
    return subprocess.run(argv, env=env, cwd=directory, capture_output=True, text=True)


def test_what_other_packages_bring_is_listed(bring):
    env = bring(COMMAND)
    said = run(env, "--version", "--plugins").stdout.splitlines()
    rows = [line.split() for line in said if "a-package" in line]
    assert rows == [["theirs", group, "a-package", "2.0"] for group in GROUPS]
    assert said[0].startswith("gateway ")
    assert "the package a-package describes it" in run(env, "senders", "show", "theirs").stderr


def test_a_command_of_another_package_runs_beside_the_own_ones(bring):
    env = bring(COMMAND)
    assert run(env, "theirs").stdout == "hello\n"
    assert "theirs" not in run(env, "--help").stdout  # that would take longer


def test_a_command_without_its_functions_is_named(bring):
    done = run(bring('"""Greet."""'), "theirs")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "brings theirs (celery_gateway.commands)" in done.stderr and "'options'" in done.stderr


def test_the_gateway_s_own_cannot_be_replaced(bring):
    said = run(bring(COMMAND, name="senders"), "senders")
    assert said.stdout.startswith("adyen ")


@pytest.mark.parametrize(
    ("args", "text", "why"),
    [
        (("theirs",), "import a_module_that_nobody_wrote", "ModuleNotFoundError: No module named"),
        (("theirs",), "def", "SyntaxError: invalid syntax"),
        (("serve", "--config=gateway.toml"), "1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_one_that_cannot_be_imported_is_named_in_one_line(bring, tmp_path, args, text, why):
    (tmp_path / "gateway.toml").write_text(SOURCE)
    done = run(bring(text), *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "the package a-package 2.0 brings theirs (celery_gateway." in done.stderr
    assert why in done.stderr and done.stderr.endswith("correct or uninstall the package\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def", "SyntaxError: invalid syntax"),
        ("INFO = StrategyInfo(stored=[][0])", "INFO has to be a call whose arguments are literals"),
        ("INFO = StrategyInfo(fast=True)", "unexpected keyword argument 'fast'"),
    ],
)
def test_a_strategy_whose_properties_cannot_be_read_is_named(bring, text, why):
    done = run(bring(text), "serve", "--strategy=theirs")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "gateway: --strategy: the package a-package 2.0 brings theirs" in done.stderr
    assert why in done.stderr


def test_a_scheme_is_one_class(bring, tmp_path):
    (tmp_path / "gateway.toml").write_text(SOURCE)
    done = run(bring(COMMAND), "serve", "--config=gateway.toml")
    assert "TypeError: it has to define one subclass of Source" in done.stderr


def test_no_list_looks_into_other_packages_before_they_are_named(bring):
    program = (
        "import sys\nfrom gateway.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "import gateway.process.child, gateway.strategies as found\n"
        "from gateway.plugins import others\n"
        "[found.find(name) for name in ('redis', 'pika')]\n"
        "print('misses', others.cache_info().misses)"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=bring(COMMAND), capture_output=True, text=True, check=True)
    assert done.stdout.endswith("misses 0\n")

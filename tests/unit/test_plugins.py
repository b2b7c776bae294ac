"""What other packages bring: found by name, and named where it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gateway import plugins
from gateway.background import Service
from gateway.cli import main
from gateway.strategies.base import Strategy

GROUPS = ("commands", "sources", "strategies")
COMMAND = '"""Greet."""\ndef options(parser): pass\ndef run(arguments): print("hello"); return 0\n'
SOURCE = '[sources.shop]\nscheme = "theirs"\nsecrets = ["a secret"]\n'
SERVE = ("serve", "--config=gateway.toml")


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make an installed package whose module `theirs` is all that it brings."""

    def bring(text: str, name: str = "theirs") -> None:
        (tmp_path / "gateway.toml").write_text(SOURCE)
        (tmp_path / "theirs.py").write_text(text)
        info = tmp_path / "a_package-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 2.0\n")
        points = "".join(f"[celery_gateway.{group}]\n{name} = theirs\n" for group in GROUPS)
        (info / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        plugins.others.cache_clear()

    yield bring
    plugins.others.cache_clear()
    sys.modules.pop("theirs", None)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run the command; return exit code, standard output and error."""

    def run(*args: str) -> tuple[int, str, str]:
        code = 0
        with suppress(SystemExit):
            code = main([*args])
        return code, *capsys.readouterr()

    return run


def test_what_other_packages_bring_is_listed(bring, run):
    bring(COMMAND)
    said = run("--version", "--plugins")[1].splitlines()
    rows = [line.split() for line in said if "a-package" in line]
    assert rows == [["theirs", group, "a-package", "2.0"] for group in GROUPS]
    assert said[0].startswith("gateway ")
    assert "the package a-package describes it" in run("senders", "show", "theirs")[2]


def test_a_command_of_another_package_runs_beside_the_own_ones(bring, run):
    bring(COMMAND)
    assert run("theirs") == (0, "hello\n", "")
    assert "theirs" not in run("--help")[1]  # that would take longer


@pytest.mark.parametrize(
    ("text", "summary"), [("# A licence.\n\n" + COMMAND, "Greet."), ("import os\n", ""), ("", "")]
)
def test_a_summary_is_the_docstrings_first_line(bring, text, summary):
    bring(text)
    assert plugins.Plugin("commands", "theirs", "theirs", package="a-package").summary() == summary


@pytest.mark.parametrize("missing", ["publisher", "results"])
async def test_a_strategy_that_does_not_connect_what_it_has_does_not_start(missing):
    parts = {"publisher": Service(), "results": Service()}
    uses = tuple(part for name, part in parts.items() if name != missing)
    strategy = type(
        "Half", (Strategy,), {**parts, "uses": uses, "send": None, "__init__": lambda _: None}
    )
    with pytest.raises(TypeError, match=f"Half.uses lacks its {missing}"):
        await strategy().start()


def test_the_gateway_s_own_cannot_be_replaced(bring, run):
    bring(COMMAND, name="senders")
    assert run("senders")[1].startswith("adyen ")


@pytest.mark.parametrize(
    ("args", "text", "why"),
    [
        (("theirs",), '"""Greet."""', "'options'"),
        (("theirs",), "import a_module_that_nobody_wrote", "ModuleNotFoundError: No module named"),
        (("theirs",), "def", "SyntaxError: invalid syntax"),
        (SERVE, "1 / 0", "ZeroDivisionError: division by zero"),
        (SERVE, COMMAND, "TypeError: it has to define one subclass of Source"),
        (("serve", "--strategy=theirs"), "def", "SyntaxError: invalid syntax"),
        (("serve", "--strategy=theirs"), "INFO = StrategyInfo(stored=[][0])",
         "INFO has to be a call whose arguments are literals"),
        (("serve", "--strategy=theirs"), "INFO = StrategyInfo(fast=True)",
         "unexpected keyword argument 'fast'"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_used_is_named_in_one_line(bring, run, args, text, why):
    bring(text)
    code, out, err = run(*args)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "the package a-package 2.0 brings theirs (celery_gateway." in err
    assert why in err and err.endswith("correct or uninstall the package\n")


def test_no_list_looks_into_other_packages_before_they_are_named(bring, tmp_path):
    program = (
        "import sys\nfrom gateway.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "import gateway.process.child, gateway.strategies as found\n"
        "from gateway.plugins import others\n"
        "[found.find(name) for name in ('redis', 'pika')]\n"
        "print('misses', others.cache_info().misses)"
    )
    bring(COMMAND)
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("misses 0\n")

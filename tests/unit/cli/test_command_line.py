"""The command line: wrong options and words, old packages, wrong files, and lists of senders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib

import pytest

from gateway import cli
from gateway.cli import main
from gateway.sources import SCHEMES

UNKNOWN = "unrecognized arguments: "


@pytest.fixture(autouse=True)
def _same_signals():
    """Let hangups through again, which `gateway serve` blocks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("argv", [["serve"], ["--port=1"]])
def test_a_hangup_waits_before_anything_else_is_loaded(monkeypatch, argv):
    def too_old() -> list[str]:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return ["blocked"] if signal.SIGHUP in blocked else []

    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    monkeypatch.setattr(cli, "_too_old", too_old)
    assert main(argv) == 2


@pytest.mark.parametrize(
    ("argv", "usage", "words"),
    [
        (["serve", "--prot", "80"], "gateway serve", UNKNOWN + "--prot 80; did you mean --port?"),
        (["--prot=80"], "gateway serve", UNKNOWN + "--prot=80; did you mean --port?"),
        (["check", "extra"], "gateway check",
         UNKNOWN + "extra; `gateway check --help` lists what there is"),
        (["send", "--as", "x", "http://127.0.0.1/", "--evnt", "e"], "gateway send",
         UNKNOWN + "--evnt e; did you mean --event?"),
        (["deliveries", "list", "--sate", "failed"], "gateway deliveries list",
         UNKNOWN + "--sate failed; did you mean --state?"),
        (["serv"], "gateway", "argument COMMAND: invalid choice: 'serv'; did you mean serve?"),
        (["completion", "zhs"], "gateway completion",
         "argument shell: invalid choice: 'zhs'; did you mean zsh?"),
    ],
)  # fmt: skip
def test_a_wrong_option_or_word_names_its_command_and_the_nearest(capsys, argv, usage, words):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert (ended.value.code, capsys.readouterr().err) == (2, f"{usage}: {words}\n")


def test_what_is_wrong_with_options_is_told_together(capsys):
    assert main(["serve", "--port", "abc", "--timeout", "0"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "gateway: --port: has to be a whole number",
        "gateway: --timeout: has to be above 0",
    ]


@pytest.mark.parametrize(("package", "version"), [("redis", "5.2.1"), ("pydantic", "1.10.27")])
def test_a_package_of_an_older_version_is_named_before_it_is_imported(
    capsys, monkeypatch, tmp_path, package, version
):
    there = tmp_path / f"{package}-{version}.dist-info"
    there.mkdir()
    (there / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["serve"]) == 2
    (problem,) = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"gateway: {package} {version} is installed, and ")
    assert "pip install 'CHECKOUT-OR-WHEEL[serve]'" in problem


def test_what_is_no_history_is_not_written_over(capsys, tmp_path):
    config, other, pipe = (tmp_path / name for name in ("gateway.toml", "shop.py", "pipe"))
    other.write_text("app = 1")
    os.mkfifo(pipe)
    for path, problem in (
        (other, "it is no history, and would be written over"),
        (tmp_path, "it is no file"),
        (pipe, "it is no file"),
        (tmp_path / "none" / "history", "its folder is missing, or this account may not write"),
    ):
        config.write_text(f'history = "{path}"')
        assert main(["serve", "--config", str(config)]) == 1
        assert capsys.readouterr().err.startswith(f"gateway: history: {path}: {problem}")


@pytest.mark.parametrize("command", ["list --text", "show", "erase --yes --text"])
def test_what_is_not_utf_8_is_refused_before_anything_is_done(capsys, command):
    assert main(["deliveries", *command.split(), "gr\udcfc\udcdfe"]) == 1
    said = capsys.readouterr().err
    assert said == "gateway: 'gr\\udcfc\\udcdfe' is not UTF-8: set the terminal to UTF-8\n"


def test_an_account_without_a_name_is_audited_by_its_number(capsys, monkeypatch):
    """As that of a container may be, which is given any number."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_234_567_890)
    argv = ["deliveries", "mute", "0" * 16, "--until", "1h"]
    assert main([*argv, "--result-backend", "redis://127.0.0.1:1/0"]) == 1
    assert "audit: mute by 1234567890@" in capsys.readouterr().err


def ran(words: str, env: dict[str, str] | None = None) -> tuple[int, bytes, str]:
    """Run a command in a shell; return its exit code and its output."""
    line = f"{sys.executable} -m gateway {words}"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, env={**os.environ, **(env or {})}
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("words", ["--version", "senders show stripe"])
@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (">&-", 0, ""),
        ("2>&- >/dev/null", 0, ""),
        ("<&- >/dev/null", 0, ""),
        (">/dev/full", 1, "gateway: its output cannot be written: No space left on device; "),
    ],
)
def test_a_stream_that_is_closed_or_full(words, output, code, said):
    ended, _, err = ran(f"{words} {output}")
    assert (ended, err.count("\n")) == (code, bool(said)) and err.startswith(said)


@pytest.mark.parametrize("words", [["--version"], ["strategies"]])
def test_a_reader_that_has_gone_ends_the_command(words):
    reader, output = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "gateway", *words]
    done = subprocess.run(argv, stdout=output, stderr=subprocess.PIPE)
    os.close(output)
    assert (done.returncode, done.stderr) == (1, b"")


def test_what_the_locale_does_not_have_is_escaped():
    words = "send --as stripe --secret x --event \u00e9 --curl http://127.0.0.1/"
    code, out, err = ran(words, {"PYTHONIOENCODING": "ascii"})
    assert (code, err) == (0, "") and b'"type":"\\xe9"' in out


def test_what_a_terminal_would_interpret_is_escaped_in_errors(capsys):
    assert main(["serve", "--config", "\x1b[31m"]) == 1
    assert capsys.readouterr().err.startswith("gateway: \\u001b[31m: cannot be read: ")


def test_all_senders_are_listed_with_what_they_need(capsys):
    assert main(["senders"]) == 0
    needs = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert sorted(needs) == sorted(SCHEMES)
    assert needs["square"] == "secrets, public_url"
    assert needs["meta"] == "secrets, verify_token"


def test_a_block_is_shown_as_it_is_written(capsys):
    assert main(["senders", "show", "pagerduty"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["title"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["wechat"], "wechat is code"),
        (["hmac"], "your own table"),
        (["strip"], "did you mean stripe?"),
        ([], "`gateway senders` lists them"),
    ],
)
def test_what_cannot_be_shown_is_told(capsys, args, words):
    assert main(["senders", "show", *args]) == 1
    assert words in capsys.readouterr().err

"""A supervisor starts what ends unexpectedly again, and passes on what tells it to end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM
from types import SimpleNamespace

import pytest
from celery.exceptions import TimeLimitExceeded
from celery.worker import state

from appserver import supervisor
from appserver.supervisor import RECYCLED, VARIABLE, Worker, main, supervise
from appserver.watch import TimeIsUp, Watch
from gateway.stack.server import poll

TIMEOUT = 30  # seconds
#: Notes in a file that it has begun, and each signal. It ends with a code after SIGTERM, and with
#: another one at once, as often as it is told to.
PROGRAM = """
import os, signal, sys
def note(text):
    with open(sys.argv[1], "a") as file:
        file.write(text + chr(10))
def received(number, frame):
    note(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(int(sys.argv[2]))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, received)
note("begun")
if len(sys.argv) > 3 and open(sys.argv[1]).read().count("begun") <= int(sys.argv[4]):
    sys.exit(int(sys.argv[3]))
while True:
    signal.pause()
"""


def worker(path: Path, code: int, *first: int) -> Worker:
    """Return one that ends with `code`; with `first`, it ends at once with [0], [1] times."""
    return Worker(path.name, [sys.executable, "-c", PROGRAM, path, str(code), *map(str, first)])


def supervised(workers: list[Worker], told) -> int:
    """Return the exit code of a supervisor while `told` runs in another thread."""
    with ThreadPoolExecutor() as pool:
        telling = pool.submit(told)
        # Otherwise the supervisor would not end where something is not as it should be.
        telling.add_done_callback(lambda one: one.exception() and os.kill(os.getpid(), SIGTERM))
        code = supervise(workers)
    telling.result()
    return code


def has(path: Path, *lines: str) -> bool:
    return poll(lambda: path.exists() and path.read_text().split() == list(lines), TIMEOUT)


def ended_after(begun: int, *paths: Path) -> Callable[[], None]:
    """Return what ends the supervisor when each program has begun so many times."""

    def told() -> None:
        assert all(has(path, *begun * ["begun"]) for path in paths)
        os.kill(os.getpid(), SIGTERM)

    return told


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((0, 3), 1)])
def test_all_get_the_signals_and_its_exit_code_tells_how_they_ended(tmp_path, codes, code):
    paths = [tmp_path / "a", tmp_path / "b"]
    signals = [SIGINT, SIGQUIT, SIGTERM]

    def told() -> None:
        seen = ["begun"]
        for number in signals:
            assert all(has(path, *seen) for path in paths)
            os.kill(os.getpid(), number)
            seen.append(number.name)

    assert supervised([worker(*each) for each in zip(paths, codes, strict=True)], told) == code

    assert all(has(path, "begun", *(each.name for each in signals)) for path in paths)


def test_what_fails_is_started_again_after_a_pause_that_grows(tmp_path, caplog):
    path = tmp_path / "a"
    begin = time.monotonic()

    assert supervised([worker(path, 0, 1, 2)], ended_after(3, path)) == 0

    assert time.monotonic() - begin >= 1 + 2
    assert caplog.messages == 2 * ["a has ended, with the exit code 1"]


def test_where_processes_are_used_up_it_is_started_later_and_the_others_run_on(
    tmp_path, monkeypatch, caplog
):
    popen, refused = supervisor.subprocess.Popen, ["a"]

    def start(command: list, **options):
        if refused and refused[0] in str(command[3]):
            raise BlockingIOError(f"no process for {refused.pop()}")
        return popen(command, **options)

    monkeypatch.setattr(supervisor.subprocess, "Popen", start)
    paths = [tmp_path / "a", tmp_path / "b"]

    assert supervised([worker(path, 0) for path in paths], ended_after(1, *paths)) == 0

    assert caplog.messages == ["a cannot be started: no process for a"]


def test_what_is_to_be_replaced_is_started_again_at_once(tmp_path, caplog):
    path = tmp_path / "a"
    recycled = worker(path, RECYCLED, RECYCLED, 3)

    assert supervised([recycled], ended_after(4, path)) == 0

    assert caplog.messages == []
    assert recycled.due is not None and recycled.due <= time.monotonic()


def test_what_cannot_be_started_ends_all(tmp_path):
    workers = [worker(tmp_path / "a", 0), worker(tmp_path / "b", 0, supervisor.UNUSABLE, 9)]

    assert supervise(workers) == supervisor.UNUSABLE
    assert not any(one.running for one in workers)


def test_an_app_that_cannot_be_imported_is_told_once_by_each(capfd):
    assert main(["--workers", "1", "no.such.app", "-l", "INFO"]) == 2
    assert "no.such.app" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["-B", "-Pprefork", "--pool=prefork", "--hostname", "-c"])
def test_options_that_contradict_it_are_refused(capsys, option):
    with pytest.raises(SystemExit, match="2"):
        main(["--workers", "2", "shop", "-Q", "orders", option])
    assert "cannot be used here: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "two", "²"])
def test_a_number_of_workers_that_cannot_be_is_told(capsys, text):
    with pytest.raises(SystemExit, match="2"):
        main([f"--workers={text}", "shop"])
    assert f"argument --workers: {text} is not a number above 0\n" in capsys.readouterr().err


def test_workers_have_names_and_options(monkeypatch):
    started: list[Worker] = []
    monkeypatch.setattr(supervisor, "supervise", started.extend)

    main(["--workers=2", "--name", "quick", "shop", "-Q", "orders", "-l", "INFO"])

    celery = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", "orders", "-l", "INFO"]
    assert [one._command for one in started] == [
        [*celery, "-P", "solo", "-c", "1", "-n", f"quick{number}@%h"] for number in (1, 2)
    ]
    assert VARIABLE not in os.environ


def test_the_hard_limit_is_told_and_its_worker_replaced(monkeypatch):
    watch, told = Watch(SimpleNamespace(pool=SimpleNamespace(options={})), limits=False), []
    monkeypatch.setattr(state, "should_stop", None)

    def target() -> None:
        raise TimeIsUp

    with pytest.raises(TimeLimitExceeded):
        watch.run(target, lambda soft, seconds: told.append((soft, seconds)), None, None)
    assert told == [(False, math.inf)] and state.should_stop == RECYCLED
    assert not watch.runs

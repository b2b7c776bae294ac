"""Send messages from one process to others by one transport, and print what it took.

    python -m loadtest.lab.transports local queue --number 1000000 --pickles
    python -m loadtest.lab.transports zeromq push-ipc --receivers 5 --directory /tmp/sockets
    python -m loadtest.lab.transports redis_transports list --url redis://127.0.0.1

Time begins when all processes are connected and ends when the last one has sent or received all.
Exit code 1: a process has failed, which says why.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.synchronize import Barrier
from time import monotonic, process_time
from typing import Any

from loadtest.lab import peak_memory
from loadtest.lab.transport import CONNECT, Run, Settings, Transport

#: Those of this package that have transports, by their names.
MODULES = ("local", "zeromq", "redis_transports", "rabbitmq_transports")

_fork = get_context("fork")


def measure(transport: Transport) -> dict[str, Any]:
    """Run the processes of `transport` and put together what they have counted.

    Returns ``requests`` (the messages that came), ``seconds``, ``missing``, ``repeated``,
    ``wrong``, and by ``sender`` and ``receivers`` ``cpu`` (seconds) and ``memory`` (MiB, of several
    receivers together). Raises ChildProcessError where a process fails.
    """
    settings = transport.settings
    barrier = _fork.Barrier(1 + settings.receivers, timeout=CONNECT)
    contexts = [transport.sending(), *map(transport.receiving, range(settings.receivers))]
    pipes = [_fork.Pipe(duplex=False) for _ in contexts]
    processes = [
        _fork.Process(target=_take_part, args=(context, barrier, writer), daemon=True)
        for context, (_, writer) in zip(contexts, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    running: dict[Any, Any] = {process.sentinel: process for process in processes}
    while running:
        for ended in wait(list(running)):
            process = running.pop(ended)
            process.join()
            if process.exitcode:  # the others would wait for it; they end with this process
                raise ChildProcessError(f"{process.name} exited with {process.exitcode}")
    return sum_up(transport, [reader.recv() for reader, _ in pipes])


def _take_part(context: AbstractContextManager[Run], barrier: Barrier, pipe: Any) -> None:
    with context as run:
        barrier.wait()
        begin, cpu = monotonic(), process_time()
        counts = run()
        end = monotonic()
    # Behind the context, in which a thread may still have been sending.
    used = process_time() - cpu
    pipe.send({"begin": begin, "end": end, "cpu": used, "memory": peak_memory(), **vars(counts)})


def sum_up(transport: Transport, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare what the sender, which is the first, and the receivers have `found`."""
    number, (sender, *receivers) = transport.settings.number, found
    came = [each["right"] for each in receivers]
    came = came if transport.copies else [sum(came)]
    answers = [sender["right"]] if transport.answers else []
    return {
        "requests": min(number, *came, *answers),
        "seconds": max(each["end"] for each in found) - min(each["begin"] for each in found),
        "missing": sum(max(0, number - right) for right in (*came, *answers)),
        "repeated": sum(max(0, right - number) for right in (*came, *answers)),
        "wrong": sum(each["wrong"] for each in found),
        **{
            what: {"sender": sender[what], "receivers": sum(each[what] for each in receivers)}
            for what in ("cpu", "memory")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="transports", description=__doc__.partition("\n")[0])
    parser.add_argument("module", choices=MODULES)
    parser.add_argument("transport")
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--receivers", type=int, default=1)
    parser.add_argument("--pickles", action="store_true")
    parser.add_argument("--url", default="")
    parser.add_argument("--directory", default="")
    options = vars(parser.parse_args())
    transports = import_module(f"loadtest.lab.{options.pop('module')}").TRANSPORTS
    name = options.pop("transport")
    if name not in transports:
        parser.error(f"no transport {name!r}; there are {', '.join(transports)}")
    try:
        print(json.dumps(measure(transports[name](Settings(**options)))))
    except ChildProcessError as exc:
        raise SystemExit(f"transports: {exc}") from None


if __name__ == "__main__":
    main()

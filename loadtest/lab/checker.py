"""Count the statuses of URLs in one of five ways, and print what it took.

    python -m loadtest.lab.checker threads --url http://127.0.0.1:8000 --number 1000

The URLs are ``URL/0``, ``URL/1`` and so on. Each has a connection of its own, as it would on the
Internet. Time begins when everything is imported, and contains the start of threads and processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from importlib import import_module
from multiprocessing import get_context
from threading import Lock, Thread
from time import monotonic
from urllib.parse import urlsplit

from loadtest.lab import peak_memory
from loadtest.machine import own_cpu_seconds

#: Threads, and requests of asyncio, at once.
AT_ONCE = 100
PROCESSES = 8
#: Seconds that an answer may take.
TIMEOUT = 30

Count = Counter[int]


def status_of(url: str) -> int:
    """Return the status of `url`. Raises OSError, HTTPException."""
    target = urlsplit(url)
    connection = HTTPConnection(target.netloc, timeout=TIMEOUT)
    try:
        connection.request("GET", target.path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def one_thread(urls: Sequence[str]) -> tuple[Count, float]:
    return Counter(map(status_of, urls)), peak_memory()


def processes(urls: Sequence[str]) -> tuple[Count, float]:
    parts = [urls[n::PROCESSES] for n in range(PROCESSES)]
    with get_context("fork").Pool(PROCESSES) as pool:
        # One part for each, and not what is left of another's.
        found = pool.map(one_thread, parts, chunksize=1)
        pool.close()
        pool.join()
    counts = sum((part for part, _ in found), Counter[int]())
    return counts, peak_memory() + sum(memory for _, memory in found)


def threads(urls: Sequence[str]) -> tuple[Count, float]:
    lock, left, counts = Lock(), iter(urls), Counter[int]()

    def check() -> None:
        while True:
            with lock:
                url = next(left, None)
            if url is None:
                return
            status = status_of(url)
            with lock:
                counts[status] += 1

    started = [Thread(target=check) for _ in range(AT_ONCE)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return counts, peak_memory()


def asynchronous(urls: Sequence[str], loop: str) -> tuple[Count, float]:
    import aiohttp

    async def check_all() -> Count:
        connector = aiohttp.TCPConnector(limit=AT_ONCE, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def check(url: str) -> int:
                async with session.get(url) as answer:
                    return answer.status

            return Counter(await asyncio.gather(*map(check, urls)))

    with asyncio.Runner(loop_factory=import_module(loop).new_event_loop) as runner:
        return runner.run(check_all()), peak_memory()


WAYS: dict[str, Callable[[Sequence[str]], tuple[Count, float]]] = {
    "one-thread": one_thread,
    "processes": processes,
    "threads": threads,
    "asyncio": lambda urls: asynchronous(urls, "asyncio"),
    "uvloop": lambda urls: asynchronous(urls, "uvloop"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="checker", description=__doc__.partition("\n")[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--number", type=int, default=1_000)
    options = parser.parse_args()
    urls = [f"{options.url}/{n}" for n in range(options.number)]
    if options.way in ("asyncio", "uvloop"):
        for module in ("aiohttp", options.way):
            import_module(module)
    begin, cpu = monotonic(), own_cpu_seconds()
    counts, memory = WAYS[options.way](urls)
    found = {
        "seconds": monotonic() - begin,
        "cpu": own_cpu_seconds() - cpu,
        "memory": memory,
        "statuses": {str(status): number for status, number in counts.items()},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

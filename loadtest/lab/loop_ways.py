"""The ways to wait for many, and the servers, that are compared on two loops; no I/O."""

from __future__ import annotations

from loadtest.lab.checker import AT_ONCE, PROCESSES

ASYNCIO, UVLOOP = LOOPS = ("asyncio", "uvloop")
NO_LOOP = "no loop"
INTERFACES = ("sockets", "streams", "protocols")
ONE = "one thread"
MANY = f"{PROCESSES} processes"
THREADS = f"{AT_ONCE} threads"
AIOHTTP = "aiohttp"
#: Way and loop -> what `loadtest.lab.checker` calls it.
WAYS = {
    (ONE, NO_LOOP): "one-thread",
    (MANY, NO_LOOP): "processes",
    (THREADS, NO_LOOP): "threads",
    (AIOHTTP, ASYNCIO): "asyncio",
    (AIOHTTP, UVLOOP): "uvloop",
}

#: Where a row has the time and the CPU of a checker, and the CPU of a server.
MS, CHECKER = ("checker", "ms"), ("cpu_us_per_request", "checker")
SERVER = ("server", "cpu_us")


def echo(interface: str) -> str:
    return f"echo, {interface}"


def gateway(strategy: str) -> str:
    return f"gateway, {strategy}"

"""What the rows break things with does what it says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import closing, suppress

import pytest

from tests.faults.proxy import Proxy
from tests.faults.servers import port_of
from tests.support.stack import Server, Stack, free_port


@pytest.fixture
def proxy(redis_server: Server) -> Proxy:
    proxy = Proxy(port_of(redis_server))
    yield proxy
    proxy.close()


async def test_a_proxy_stalls_goes_on_and_resets(proxy: Proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"+PONG\r\n"

    proxy.stall()
    writer.write(b"PING\r\n")
    answer = asyncio.ensure_future(reader.readline())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answer), 0.5)

    proxy.resume()
    assert await answer == b"+PONG\r\n"

    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await reader.readline()
    writer.close()


async def test_a_proxy_resets_all_also_while_one_is_half_closed():
    served: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.put_nowait(writer)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        ended.set()

    port = free_port()
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        with closing(Proxy(port)) as proxy:
            connections = []
            for _ in range(6):
                connections.append(await asyncio.open_connection("127.0.0.1", proxy.port))
                far = await served.get()
            # Given one that has ended in one direction, with something on its way in the other,
            proxy.stall()
            far.write(b"on its way")
            _, writer = connections.pop()
            writer.close()
            await ended.wait()

            proxy.reset()

            for reader, writer in connections:
                with pytest.raises(ConnectionResetError):
                    await reader.read()
                writer.close()


async def test_a_proxy_is_as_slow_as_told(proxy: Proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.slow(bits_per_second=800_000, delay=0.2)
    began = time.monotonic()
    value = b"x" * 50_000
    writer.write(b"SET slow %b\r\nGET slow\r\n" % value)
    assert await reader.readline() == b"+OK\r\n"
    await reader.readexactly(len(b"$50000\r\n") + len(value))
    # 0.2 s there and back, and 0.5 s for 50 KB each way
    assert time.monotonic() - began >= 0.9
    writer.close()


def test_a_clock_steps_for_whoever_goes_by_it_and_for_nobody_else(stack: Stack):
    clock, pipe = stack.clock(), subprocess.PIPE
    code = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, env=clock.env, stdin=pipe, stdout=pipe) as process:
        for step in (0, 600, -600):
            clock.step(step)
            process.stdin.write(b"\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            assert abs(wall - step - time.time()) < 2
            assert abs(monotonic - time.monotonic()) < 2

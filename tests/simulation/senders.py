"""Senders: each has one delivery, and tries until it is taken."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import Party
from tests.simulation.records import GONE, REFUSED, RESET, SILENT, Try

if TYPE_CHECKING:
    from tests.simulation.world import World

#: The routes with an identity, and those without: deadline in seconds.
IDENTIFIED = {"/wait": 5.0, "/accept": 5.0, "/later": 2.0, "/also": 5.0}
PLAIN = {"/plain": 5.0, "/plain-accept": 5.0}
#: The route of senders as WeChat's, who wait five seconds for each of three tries, and what the
#: last one gets where there is no result yet.
HASTY, TRIES, TRY_AFTER, FALLBACK = "/hasty", 3, 5.0, "success"
#: The route of senders that take the result after its fallback.
LATE = "/late"
DEADLINES = IDENTIFIED | PLAIN | {HASTY: 4.5, LATE: 2.0}
EXTRA = 8.0  # seconds after the deadline for which a sender waits
KEPT = 300  # seconds that results are kept in most seeds: until the end
PAUSE = (0.5, 3.0)  # seconds between tries: the first, the longest

_length = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)").search
_field = re.compile(rb"\r\n([A-Za-z-]+): ([^\r]*)").findall


class Client(asyncio.Protocol):
    """An HTTP client's connection; its answers come in order."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.used = self.closed = False
        self.since = 0.0  # when its last answer had come
        self._buffer = b""
        self._waiting: deque[asyncio.Future[tuple[int, dict[str, str], bytes]]] = deque()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def idle(self) -> bool:
        return not (self.closed or self._waiting)

    def expect(self) -> asyncio.Future[tuple[int, dict[str, str], bytes]]:
        future = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_exception(ConnectionResetError())
        else:
            self._waiting.append(future)
        return future

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2]
            found = _length(head)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < size:
                return
            body, self._buffer = self._buffer[end + 4 : size], self._buffer[size:]
            fields = {name.decode().lower(): value.decode() for name, value in _field(head)}
            if fields.get("connection") == "close":
                self.closed = True
            future = self._waiting.popleft()
            if not future.done():
                future.set_result((int(head[9:12]), fields, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionResetError())
                future.exception()  # its sender may not wait for it any more


class Senders:
    """Sends `number` deliveries, and the further ones that the plan has, within its time."""

    def __init__(self, world: World, number: int):
        self.world, plan = world, world.plan
        self.party = Party("senders")
        self.seconds, self.only = plan.seconds, plan.senders
        self._kinds = [self._deliver] * number + [self._deliver_hastily] * plan.hasty
        self._kinds += [self._deliver_late] * plan.late
        self.until = float("inf")
        self._idle: dict[str, list[Client]] = {}

    async def run(self) -> None:
        """Send everything, and return when every sender has ended."""
        started = asyncio.get_running_loop().time()
        tasks = []
        for number, deliver in enumerate(self._kinds):
            rng = Random(f"{self.world.seed} sender {number}")
            # Some come together.
            at = self.seconds * rng.random()
            if rng.random() < 0.5:
                at = round(at / 4) * 4 + rng.random() * 0.05
            if self.only is None or number in self.only:
                tasks.append(asyncio.create_task(deliver(number, started + at, rng)))
        await asyncio.gather(*tasks)

    async def _deliver_hastily(self, number: int, at: float, rng: Random) -> None:
        """Try three times, five seconds each, whatever the gateway answers with."""
        loop = asyncio.get_running_loop()
        seconds = round(rng.random() if rng.random() < 0.5 else rng.uniform(1, 18), 2)
        fail = 0.3 if rng.random() < 0.1 else 0.0
        for n in range(TRIES):
            await asyncio.sleep(at + n * TRY_AFTER - loop.time())
            one = Try(
                f"d{number}", n + 1, HASTY, self._gateway(rng), loop.time(), seconds,
                failing=fail > 0, hasty=True,
            )  # fmt: skip
            await self._try(one, rng, TRY_AFTER, f"seconds={seconds}&fail={fail}", 0)
            if one.good:
                return

    async def _deliver_late(self, number: int, at: float, rng: Random) -> None:
        await self._deliver(number, at, rng, (LATE, round(rng.uniform(0.5, 8), 2)))

    async def _deliver(
        self, number: int, at: float, rng: Random, chosen: tuple[str, float] | None = None
    ) -> None:
        """Try until it is taken, at a route that is `chosen`, with its task's seconds, or drawn."""
        loop, scene = asyncio.get_running_loop(), self.world.plan.scene
        await asyncio.sleep(at - loop.time())
        identified = rng.random() < 0.6 or chosen is not None
        route = rng.choice(list(IDENTIFIED if identified else PLAIN))
        quick = rng.random() < scene.quick
        seconds = round(rng.random() ** 4, 2) if quick else rng.uniform(1, scene.longest)
        route, seconds = chosen or (route, seconds)
        fail = 0.3 if rng.random() < scene.failing else 0.0
        name, n = f"d{number}", 0
        padding = rng.randrange(20_000) if rng.random() < 0.03 else 0
        pause, longest = PAUSE
        hangs_up = rng.random() < 0.12
        again = rng.random() < 0.25
        while True:
            n += 1
            one = Try(name, n, route, self._gateway(rng), loop.time(), seconds, failing=fail > 0)
            patience = scene.patience or DEADLINES[route] + EXTRA
            if hangs_up and rng.random() < 0.6:
                patience = rng.random() ** 2 * 2
            await self._try(one, rng, patience, f"seconds={seconds}&fail={fail}", padding)
            if one.location and rng.random() < 0.5:
                await self._read(one, rng)
            if one.good and again:
                again = False
                await asyncio.sleep(self._until_expiry(rng) or rng.uniform(0, 3))
            elif one.good or not identified or loop.time() > self.until:
                return
            else:
                await asyncio.sleep(self._until_expiry(rng) or pause * rng.uniform(0.5, 1.0))
                pause = min(2 * pause, longest)

    def _until_expiry(self, rng: Random) -> float:
        """Draw how many seconds to wait until a result is not kept any more; most do not wait."""
        expires = self.world.expires
        if expires == KEPT or rng.random() >= 0.3:
            return 0.0
        seconds = expires * rng.uniform(1.2, 1.8)
        return seconds if self.world.loop.time() + seconds < self.until - 30 else 0.0

    def _gateway(self, rng: Random) -> str:
        return rng.choice(list(self.world.gateways))

    async def _try(self, one: Try, rng: Random, patience: float, query: str, padding: int) -> None:
        loop = asyncio.get_running_loop()
        self.world.evidence.tries.append(one)
        body = one.delivery.encode() + b" " * padding
        head = (
            f"POST {one.route}?{query} HTTP/1.1\r\nHost: x\r\nX-Delivery: {one.delivery}\r\n"
            f"X-Try: {one.id}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        slow = rng.random() < 0.1 and not one.hasty
        twin = rng.random() < 0.05  # the same request twice on one connection
        client = None
        began = loop.time()
        self._trace(one, f"sent; its task takes {one.seconds} s")
        try:
            async with asyncio.timeout(patience):
                client = await self._connection(one.gateway, rng)
                one.reused = client.used
                one.at = loop.time()
                one.idle = one.at - client.since if client.used else 0.0
                answer = client.expect()
                client.used = True
                if slow:
                    await self._slowly(client, head, body, one, rng)
                else:
                    client.transport.write(head + body)
                    if twin and one.route in IDENTIFIED:
                        self._twin(client, one, head + body)
                status, fields, content = await answer
            self._note(one, status, fields, content)
        except ConnectionRefusedError:
            one.status = REFUSED
        except TimeoutError:
            one.status = GONE if patience < DEADLINES[one.route] + EXTRA else SILENT
        except OSError:
            one.status = RESET
        one.answered = loop.time()
        told = " ".join(filter(None, (str(one.status), one.type, one.body and repr(one.body))))
        task = f", task {one.task}" if one.task else ""
        self._trace(one, f"{told} after {one.answered - began:.3f} s{task}")
        if client is not None:
            if type(one.status) is int and client.idle and rng.random() < 0.5:
                client.since = one.answered
                self._idle.setdefault(one.gateway, []).append(client)
            elif one.status == GONE and rng.random() < 0.5:
                client.transport.abort()
            else:
                client.transport.close()

    def _trace(self, one: Try, what: str) -> None:
        self.world.trace("sender", f"{one.id} {one.route} {one.gateway}: {what}")

    def _twin(self, client: Client, one: Try, data: bytes) -> None:
        """Send the same request again, without waiting for the first one's answer."""
        loop, first = asyncio.get_running_loop(), one
        twin = Try(
            one.delivery, one.number + 1000, one.route, one.gateway, loop.time(), one.seconds,
            failing=one.failing, reused=True,
        )  # fmt: skip
        answer = client.expect()
        data = data.replace(f"X-Try: {one.id}".encode(), f"X-Try: {twin.id}".encode())
        client.transport.write(data)

        def done(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            twin.answered = loop.time()
            twin.at = max(twin.at, first.answered or loop.time())
            self._note(twin, *future.result())
            self._trace(twin, f"{twin.status} {twin.type} {twin.body} to the same request again")
            self.world.evidence.tries.append(twin)

        answer.add_done_callback(done)

    async def _slowly(
        self, client: Client, head: bytes, body: bytes, one: Try, rng: Random
    ) -> None:
        data, parts = (
            head + body,
            sorted(rng.randrange(len(head)) for _ in range(rng.randint(1, 3))),
        )
        at, loop = 0, asyncio.get_running_loop()
        try:
            for part in [*parts, len(head)]:
                client.transport.write(data[at:part])
                at = part
                await asyncio.sleep(rng.uniform(0, 0.4))
        except asyncio.CancelledError:  # the sender leaves before it has sent all
            one.at = loop.time()
            raise
        if not client.closed:  # else it was lost at some time before
            one.at = loop.time()
        client.transport.write(data[at:])

    async def _connection(self, gateway: str, rng: Random) -> Client:
        idle = self._idle.get(gateway, [])
        while idle and rng.random() < 0.6:
            client = idle.pop()
            if not client.closed:
                return client
            client.transport.close()
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Client, gateway, 8000)
        return made

    async def _read(self, one: Try, rng: Random) -> None:
        """Ask for the result where a 202 says that it will be."""
        path = "/results/" + one.location.rpartition("/results/")[2]
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.1, 2))
            client = None
            try:
                async with asyncio.timeout(20):
                    client = await self._connection(self._gateway(rng), rng)
                    client.used = True
                    answer = client.expect()
                    client.transport.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    status, _, body = await answer
            except (OSError, TimeoutError):
                continue
            finally:
                if client is not None:
                    client.transport.close()
            self._trace(one, f"its result's URL gives {status} {body[:40]!r}")
            if status == 200:
                self.world.evidence.read.append((one.delivery, body.decode()))
            if status == 500:
                self.world.evidence.logged.append(f"a 500 for the result of {one.id}")
            if status in (200, 404, 410, 502):
                return

    def _note(self, one: Try, status: int, fields: dict[str, str], body: bytes) -> None:
        one.status, one.location = status, fields.get("location", "")
        if status == 200:
            one.body = body.decode()
            if one.body == FALLBACK:
                one.status, one.body = 202, ""
        elif status == 202:
            one.task = json.loads(body)["task_id"]
        elif fields.get("content-type") == "application/problem+json":
            problem = json.loads(body)
            one.type, one.detail = problem["type"].rpartition(":")[2], problem["detail"]
            one.task = problem.get("task_id", "")

    def close(self) -> None:
        for clients in self._idle.values():
            for client in clients:
                client.transport.close()

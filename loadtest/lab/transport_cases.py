"""The transports that are compared, and in which forms; no I/O."""

from __future__ import annotations

from dataclasses import dataclass

BYTES, PICKLES = "bytes", "pickles"
SEVERAL = 5  # receivers
#: Where a row has the messages per second.
RATE = ("rps",)


@dataclass(frozen=True)
class Case:
    """A transport, by what it is called here and by `loadtest.lab.transports`.

    A `share` of all messages is sent; `rate` is what to expect a second, for the estimate of time.
    """

    transport: str
    module: str
    name: str
    pickles: bool = False
    receivers: int = 1
    share: float = 1.0
    rate: int = 500_000

    @property
    def form(self) -> str:
        form = PICKLES if self.pickles else BYTES
        return form if self.receivers == 1 else f"{form}, {self.receivers} receivers"


QUEUE = "multiprocessing.Queue"
PIPE = "multiprocessing.Pipe"
PUSH = "ZeroMQ PUSH/PULL, ipc"
EACH = "UNIX socket, a write each"
BUFFERED = "UNIX socket, buffered"
LIST, PIPELINED_LIST = "Redis list", "Redis list, pipelined"
TRANSIENT, CONFIRMED = "RabbitMQ, transient", "RabbitMQ, confirmed"
REDIS, RABBITMQ = "redis_transports", "rabbitmq_transports"
#: Module -> what a bench calls its server.
SERVERS = {REDIS: "redis", RABBITMQ: "broker"}


def _zeromq(label: str, name: str, share: float, several: float, rate: int) -> list[Case]:
    return [
        Case(f"{label}, {address}", "zeromq", f"{name}-{address}", pickles, receivers, part, rate)
        for address in ("ipc", "tcp")
        for receivers, part in ((1, share), (SEVERAL, several))
        for pickles in (True, False)
    ]


CASES: list[Case] = [
    Case(QUEUE, "local", "queue", True, rate=100_000),
    Case(QUEUE, "local", "queue", True, SEVERAL, 0.1, 60_000),
    Case("multiprocessing.SimpleQueue", "local", "simple-queue", True, 1, 0.5, 120_000),
    Case("multiprocessing.SimpleQueue", "local", "simple-queue", True, SEVERAL, 0.1, 60_000),
    Case(PIPE, "local", "pipe", True, share=0.5, rate=150_000),
    Case(PIPE, "local", "pipe", share=0.5, rate=250_000),
    *_zeromq("ZeroMQ PUSH/PULL", "push", 1, 0.2, 500_000),
    *_zeromq("ZeroMQ PUB/SUB", "pub", 1, 0.1, 400_000),
    *_zeromq("ZeroMQ DEALER/ROUTER", "dealer", 0.05, 0.05, 60_000),
    Case(EACH, "local", "socket", share=0.5, rate=300_000),
    Case(BUFFERED, "local", "buffered-socket"),
    Case("UNIX socket, fixed size", "local", "fixed-size-socket", rate=1_000_000),
    Case(PIPELINED_LIST, REDIS, "pipelined-list", share=0.1, rate=40_000),
    Case("Redis stream, pipelined", REDIS, "pipelined-stream", share=0.1, rate=40_000),
    Case("Redis stream, group", REDIS, "group", share=0.1, rate=40_000),
    Case(LIST, REDIS, "list", share=0.02, rate=6_000),
    Case("Redis stream", REDIS, "stream", share=0.02, rate=6_000),
    Case(TRANSIENT, RABBITMQ, "transient", share=0.1, rate=15_000),
    Case(CONFIRMED, RABBITMQ, "confirmed", share=0.02, rate=5_000),
]

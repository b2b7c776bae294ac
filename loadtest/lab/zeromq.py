"""Transports of ZeroMQ.

With PUSH and DEALER, receivers listen and the sender connects, which has an effect at once. The
other way round, the sender would have to wait until the last receiver has come. A publisher
listens, and knows by the subscriptions who has come. Where it connects, libzmq 4.3.5 shows none.

No socket has a high-water mark. PUB drops what is above it. PUSH and DEALER would no longer take
turns among the receivers, and so not send each one its end.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, ClassVar

import zmq

from loadtest.lab.transport import WINDOW, Counts, Run, Settings, Transport


class PushPull(Transport):
    """PUSH to PULL: each message to the next receiver."""

    sender: ClassVar[int] = zmq.PUSH
    receiver: ClassVar[int] = zmq.PULL

    def __init__(self, tcp: bool, settings: Settings):
        super().__init__(settings)
        self._tcp = tcp
        self.addresses = get_context("fork").SimpleQueue()

    @contextmanager
    def sending(self) -> Iterator[Run]:
        with zmq.Context() as context, context.socket(self.sender) as socket:
            self.prepare(socket)
            self.reach_receivers(socket)
            yield partial(self.give_all, socket)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        with zmq.Context() as context, context.socket(self.receiver) as socket:
            self.prepare(socket)
            self.reach_sender(socket, index)
            yield partial(self.take_all, socket)

    def prepare(self, socket: zmq.Socket[bytes]) -> None:
        """Set the options of a socket."""
        socket.set_hwm(0)

    def reach_receivers(self, socket: zmq.Socket[bytes]) -> None:
        """Return when each receiver gets what is sent."""
        for _ in range(self.settings.receivers):
            socket.connect(self.addresses.get())

    def reach_sender(self, socket: zmq.Socket[bytes], index: int) -> None:
        self.addresses.put(self.listen(socket, index))

    def listen(self, socket: zmq.Socket[bytes], index: int = 0) -> str:
        """Return the address."""
        socket.bind(
            "tcp://127.0.0.1:*" if self._tcp else f"ipc://{self.settings.directory}/{index}"
        )
        return socket.get_string(zmq.LAST_ENDPOINT)

    def give_all(self, socket: zmq.Socket[bytes]) -> Counts:
        return self.give(socket.send_pyobj if self.settings.pickles else socket.send)

    def take_all(self, socket: zmq.Socket[bytes]) -> Counts:
        return self.take(socket.recv_pyobj if self.settings.pickles else socket.recv)


class DealerRouter(PushPull):
    """DEALER to ROUTER, which answers each message with the same; `WINDOW` are under way."""

    answers = True
    sender = zmq.DEALER
    receiver = zmq.ROUTER

    def give_all(self, socket: zmq.Socket[bytes]) -> Counts:
        pickles, message, left = self.settings.pickles, self.settings.message, self.settings.number
        send = socket.send_pyobj if pickles else socket.send
        receive = socket.recv_pyobj if pickles else socket.recv
        counts = Counts()
        under_way = min(left, WINDOW)
        for _ in range(under_way):
            send(message)
        left -= under_way
        while under_way:
            counts.add(receive(), message)
            if left:
                send(message)
                left -= 1
            else:
                under_way -= 1
        for _ in range(self.settings.receivers):
            send(self.settings.end)
        return counts

    def take_all(self, socket: zmq.Socket[bytes]) -> Counts:
        loads, dumps = pickle.loads, pickle.dumps
        receive, send = socket.recv_multipart, socket.send_multipart
        pickles, end = self.settings.pickles, self.settings.end

        def answered() -> Any:
            sender, body = receive()
            message = loads(body) if pickles else body
            if message != end:
                send([sender, dumps(message) if pickles else message])
            return message

        return self.take(answered)


class PubSub(PushPull):
    """PUB to SUB: each message to every receiver.

    XPUB is a PUB that also reads the subscriptions.
    """

    copies = True
    sender = zmq.XPUB
    receiver = zmq.SUB

    def prepare(self, socket: zmq.Socket[bytes]) -> None:
        super().prepare(socket)
        if socket.type == zmq.SUB:
            socket.set(zmq.SUBSCRIBE, b"")
        else:
            # Or it would tell only the first of several subscriptions that are the same.
            socket.set(zmq.XPUB_VERBOSE, 1)

    def reach_receivers(self, socket: zmq.Socket[bytes]) -> None:
        address = self.listen(socket)
        for _ in range(self.settings.receivers):
            self.addresses.put(address)
        for _ in range(self.settings.receivers):
            socket.recv()  # a subscription

    def reach_sender(self, socket: zmq.Socket[bytes], index: int) -> None:
        socket.connect(self.addresses.get())


TRANSPORTS = {
    f"{name}-{address}": partial(kind, address == "tcp")
    for name, kind in (("push", PushPull), ("dealer", DealerRouter), ("pub", PubSub))
    for address in ("ipc", "tcp")
}

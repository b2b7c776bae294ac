"""Send messages to an echo server over many connections, and print what it took.

    python -m loadtest.lab.echo_client --port N --number 100000 --connections 50

Each connection has one message under way. Every answer is compared with its message.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
from contextlib import ExitStack
from time import monotonic
from typing import Any

from loadtest.summary import latency

#: Bytes of a message.
SIZE = 1_024
#: Seconds that the server may be silent.
TIMEOUT = 30


class Conversation:
    """A connection with the message that is under way."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.message = b""
        self.answer = b""
        self.sent = 0.0

    def send(self, number: int) -> None:
        self.message = number.to_bytes(8, "big") * (SIZE // 8)
        self.answer = b""
        self.sent = monotonic()
        # A socket's buffer has room for the only one.
        self.connection.sendall(self.message)


def run(port: int, number: int, connections: int) -> dict[str, Any]:
    """Exchange `number` messages. Raises OSError, and ConnectionError where the server closes or
    says nothing for `TIMEOUT` seconds."""
    seconds: list[float] = []
    wrong = 0
    with ExitStack() as stack, select.epoll() as poll:
        conversations = {}
        for _ in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conversations[connection.fileno()] = Conversation(connection)
            poll.register(connection, select.EPOLLIN)
        begin = monotonic()
        sent = 0
        for conversation in list(conversations.values())[:number]:
            conversation.send(sent)
            sent += 1
        while len(seconds) < number:
            ready = poll.poll(TIMEOUT)
            if not ready:
                raise ConnectionError(f"no answer for {TIMEOUT} s")
            for descriptor, _ in ready:
                conversation = conversations[descriptor]
                data = conversation.connection.recv(2 * SIZE)
                if not data:
                    raise ConnectionError("the server has closed a connection")
                conversation.answer += data
                if len(conversation.answer) < SIZE:
                    continue
                seconds.append(monotonic() - conversation.sent)
                wrong += conversation.answer != conversation.message
                if sent < number:
                    conversation.send(sent)
                    sent += 1
        total = monotonic() - begin
    return {
        "requests": number,
        "seconds": total,
        "wrong_answers": wrong,
        "latency_ms": latency(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="echo_client", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=50)
    print(json.dumps(run(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()

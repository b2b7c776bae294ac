"""What every transport does: a sending process, receiving ones, and messages that are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

#: What is sent, and what is sent to each receiver behind the last message; of one length.
MESSAGE, END = b"MESSAGE", b"THE END"
#: Seconds that a process waits for another one to connect.
CONNECT = 30
#: Messages that are sent together, or are under way at once, where a transport limits it.
WINDOW = 500

#: Sends all messages, or receives them until `END`.
Run = Callable[[], "Counts"]


@dataclass
class Counts:
    """What came of all messages that a process was to see: `right` ones, and others."""

    right: int = 0
    wrong: int = 0

    def add(self, message: object, expected: object) -> None:
        if message == expected:
            self.right += 1
        else:
            self.wrong += 1


@dataclass(frozen=True)
class Settings:
    """`number` messages to `receivers` processes, as pickled objects or as bytes.

    `url` is the server's, where there is one; sockets with a name are made in `directory`.
    """

    number: int
    receivers: int = 1
    pickles: bool = False
    url: str = ""
    directory: str = ""

    @property
    def message(self) -> Any:
        return MESSAGE.decode() if self.pickles else MESSAGE

    @property
    def end(self) -> Any:
        return END.decode() if self.pickles else END


class Transport(ABC):
    """A transport, made in the process from which the sending and the receiving ones are forked."""

    #: Does each receiver get every message?
    copies = False
    #: Does the sender get an answer to each message?
    answers = False

    def __init__(self, settings: Settings):
        self.settings = settings

    @abstractmethod
    def sending(self) -> AbstractContextManager[Run]:
        """Connect; all that was sent has left the process when the context ends.

        A `Run` that has answers to its messages counts them; others count nothing.
        """

    @abstractmethod
    def receiving(self, index: int) -> AbstractContextManager[Run]:
        """Connect as the receiver with this number."""

    def give(self, send: Callable[[Any], object]) -> Counts:
        """Send all messages, then an end to each receiver; or one, of which each gets a copy."""
        message, end = self.settings.message, self.settings.end
        for _ in repeat(None, self.settings.number):
            send(message)
        for _ in range(1 if self.copies else self.settings.receivers):
            send(end)
        return Counts()

    def take(self, receive: Callable[[], Any]) -> Counts:
        """Receive and count until the end."""
        message, end = self.settings.message, self.settings.end
        right = wrong = 0  # locals: this loop is part of what is measured
        while True:
            got = receive()
            if got == message:
                right += 1
            elif got == end:
                return Counts(right, wrong)
            else:
                wrong += 1

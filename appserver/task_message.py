"""A message of a task, as it is found in what the broker has sent."""

from __future__ import annotations

from json import JSONDecoder
from struct import unpack_from
from typing import Any, Protocol

from kombu.exceptions import DecodeError
from kombu.message import Message
from kombu.utils.json import object_hook

from appserver.properties import decode_properties

_JSON, _UTF_8 = "application/json", "utf-8"
_decode_json = JSONDecoder(object_hook=object_hook).decode


class Settling(Protocol):
    """Settles messages, from any thread."""

    def acknowledge(self, tag: int) -> None: ...
    def refuse(self, message: TaskMessage, logger: Any, errors: Any, requeue: bool) -> None: ...


_Message: Any = Message  # for mypy: kombu has no types


class TaskMessage(_Message):
    """kombu's message; it is acknowledged together with others, and decodes JSON directly."""

    def __init__(
        self,
        stream: Settling,
        channel: Any,
        accept: Any,
        info: dict[str, Any],
        data: bytes,
        at: int,
    ):
        """Read the header and body frames, which begin at `at`, and of which none is missing."""
        self._stream = stream
        self._payload: Any = None
        size = unpack_from(">I", data, at + 3)[0]
        properties = decode_properties(data, at + 19)
        body = unpack_from(">Q", data, at + 11)[0]
        begin = at + 8 + size + 7
        super().__init__(
            body=_text(data[begin : begin + body], properties.get("content_encoding", _UTF_8)),
            delivery_tag=info["delivery_tag"],
            content_type=properties.get("content_type"),
            content_encoding=properties.get("content_encoding"),
            delivery_info=info,
            properties=properties,
            headers=properties.get("application_headers") or {},
            accept=accept,
            channel=channel,
        )

    @property
    def payload(self) -> Any:
        """The decoded body. Raises what `decode` does."""
        if self._payload is None:
            self._payload = self.decode()
        return self._payload

    def decode(self) -> Any:
        """Decode the body. Raises DecodeError, ContentDisallowed."""
        ours = self.content_type == _JSON and self.content_encoding == _UTF_8
        if not ours or not (self.accept is None or _JSON in self.accept):
            return super().decode()
        try:
            return _decode_json(self.body.decode())
        except (ValueError, RecursionError) as exc:
            raise DecodeError(str(exc)) from exc

    def acknowledge(self, logger: Any, errors: Any) -> None:
        """Acknowledge the message, as a request does when it has ended; any thread may."""
        self._stream.acknowledge(self.delivery_tag)

    def refuse(self, logger: Any, errors: Any, requeue: bool) -> None:
        """Reject the message; any thread may."""
        self._stream.refuse(self, logger, errors, requeue)


def _text(body: bytes, encoding: str) -> str | bytes:
    """Return `body` as py-amqp does; what decodes it later takes bytes as UTF-8."""
    if encoding == _UTF_8:
        return body
    try:
        return body.decode(encoding)
    except (LookupError, ValueError):  # no text, as "binary"
        return body

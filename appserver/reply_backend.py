"""Result backends that answer over AMQP where a gateway asks for it, and store otherwise.

A request whose ``reply_to`` begins with one of `REPLY_PREFIXES` waits for a message: its final
state is published on the default exchange, in the JSON that Celery stores. It is stored as well
where the message's ``delivery`` header has a true ``store``, where the request has no headers of
its own, and where the reply could not be written. Everyone else's tasks are stored as ever.

The three backends differ in their store: Redis, Redis behind Sentinel, none.

https://www.rabbitmq.com/docs/direct-reply-to
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import BackendError
from celery.utils.serialization import ensure_serializable
from kombu.exceptions import EncodeError
from kombu.utils.json import JSONEncoder
from redis.exceptions import RedisError

from appserver.reply_connection import reply_connection
from appserver.result_script import ResultScript

REPLY_PREFIXES = ("gateway.reply.", "amq.rabbitmq.reply-to.")

log = logging.getLogger(__name__)

_encode = JSONEncoder().encode

_Backend: Any = object  # for mypy, the backend that it is mixed into


class ReplyMixin(_Backend):
    """Reply where the request asks for it; leave the rest to the backend that is mixed in."""

    def store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Publish a final state to the gateway, store any state, or both; return the result.

        Raises EncodeError where a reply's result is not JSON; Celery makes a failure of it.
        """
        reply_to = getattr(request, "reply_to", None)
        if not reply_to or not reply_to.startswith(REPLY_PREFIXES):
            return super().store_result(task_id, result, state, traceback, request, **kwargs)
        # A reply comes before the store: the sender waits for the one and not for the other.
        final = state in states.READY_STATES
        replied = final and self._reply(reply_to, task_id, result, state, traceback, request)
        if (replied or not final) and not must_store(request):
            return result
        try:
            return super().store_result(task_id, result, state, traceback, request, **kwargs)
        except (RedisError, OSError, BackendError):
            if not replied:
                raise
            # Celery would make a failure of it, and contradict what the sender has been told.
            log.exception("The result of task %s was replied, but could not be stored", task_id)
            return result

    def _reply(
        self,
        reply_to: str,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None,
        request: Any,
    ) -> bool:
        meta = {
            "status": state,
            "result": json_result(result),
            "traceback": traceback,
            "children": self.current_task_children(request),
            "date_done": datetime.now(UTC).isoformat(),
            "task_id": task_id,
        }
        return reply_connection(self.app).publish(reply_to, task_id, encode(meta))


class ReplyBackend(ReplyMixin, ResultScript, RedisBackend):
    """Reply, or store in Redis: ``appserver.reply_backend:ReplyBackend+redis://host/0``."""


class SentinelReplyBackend(ReplyMixin, ResultScript, SentinelBackend):
    """Reply, or store in the Redis that Sentinel names; the URL is Celery's ``sentinel://``."""


class StorelessReplyBackend(ReplyMixin, DisabledBackend):
    """Reply and store nothing."""


def must_store(request: Any) -> bool:
    """Tell whether the result of `request` is to be stored even if it was replied.

    The request of an unknown task has no headers at all, and nobody can tell what it wanted.
    """
    headers = getattr(request, "headers", None)
    if not headers:
        return True
    delivery = headers.get("delivery")
    return isinstance(delivery, dict) and bool(delivery.get("store"))


def json_result(result: Any) -> Any:
    """Return what Celery's JSON has for `result`: of an exception its type and arguments."""
    if not isinstance(result, BaseException):
        return result
    cls = type(result)
    return {
        "exc_type": cls.__qualname__,
        "exc_message": ensure_serializable(result.args, _encode),
        "exc_module": cls.__module__,
    }


def encode(meta: dict[str, Any]) -> bytes:
    """Encode a result's JSON, uncompressed whatever ``result_compression`` says."""
    try:
        return _encode(meta).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise EncodeError(str(exc)) from exc

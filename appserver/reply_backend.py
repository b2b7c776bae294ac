"""Result backends that reply over AMQP where a gateway asks for it, and store results otherwise.

The gateway waits for a reply if the request's ``reply_to`` begins with one of `REPLY_PREFIXES`: the
final state is published on the default exchange, in the JSON that Celery stores. It is stored as
well where the message's ``delivery`` header has a true ``store``, where the request has no headers
of its own, and where the reply could not be written. Results of all other tasks are stored as
usual.

The three backends differ in their store: Redis, Redis behind Sentinel, none.

https://www.rabbitmq.com/docs/direct-reply-to
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from celery import current_task, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.result import ResultBase
from celery.utils.serialization import ensure_serializable
from kombu.exceptions import EncodeError
from kombu.utils.json import JSONEncoder

from appserver import sentinels
from appserver.held_results import Reply, is_followed
from appserver.lost_results import lost_results
from appserver.reply_connection import reply_connection
from appserver.result_script import ResultScript, meta_of, with_retries

REPLY_PREFIXES = ("gateway.reply.", "amq.rabbitmq.reply-to.")

#: What Celery's worker stores after everything else, or before the task; if it gets an error, it
#: neither acknowledges the message nor runs the task, and may end.
LAST = frozenset((states.FAILURE, states.REVOKED, states.RETRY, states.STARTED))

#: The largest reply, in bytes. RabbitMQ takes no larger message since 4.0 unless it is told to
#: (`max_message_size`): it closes the channel, and the replies behind that one are lost.
MAX_REPLY = 16 * 1024 * 1024

#: The longest of AMQP's short strings, in bytes.
SHORT = 255

log = logging.getLogger(__name__)

_encode = JSONEncoder().encode

_Backend: Any = object  # for mypy: the class of the backend with which the mixin is combined


class ReplyMixin(_Backend):
    """Mixin that replies where a request asks for it, and else stores with the other backend."""

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

        Raises an error only where that may change something: a success that cannot be written is
        recorded as a failure by Celery, and a task's own states are the task's affair. `LAST` are
        not.
        """
        reply_to = getattr(request, "reply_to", None)
        store = partial(super().store_result, task_id, result, state, traceback, request, **kwargs)
        if not reply_to or not reply_to.startswith(REPLY_PREFIXES):
            return self._store(store, task_id, result, state)
        if not (is_short(reply_to) and is_short(task_id)):
            # Nobody can wait for that reply, and it would fail all that are written with it.
            return self._store(store, task_id, result, state)
        # The reply is sent before the result is stored, because the sender waits for the reply.
        must = must_store(request)
        final = state in states.READY_STATES
        if final:
            shown = json_result(result, state)
            meta = meta_of(self, task_id, shown, state, traceback, request)
            text = encode(with_retries(meta, state, request))
            # In place of what is too large the gateway gets its size.
            body = text if len(text) <= MAX_REPLY else b"%d" % len(text)
            reply = Reply(reply_to, task_id, body)
            connection = reply_connection(self.app)
            if connection.held and not must:
                otherwise = partial(self._store, store, task_id, result, state, False, held=True)
                if connection.held.hold_reply(reply, otherwise):
                    return result
        replied = final and connection.publish(reply)
        if (replied or not final) and not must:
            return result
        return self._store(store, task_id, result, state, replied)

    def mark_as_done(
        self,
        task_id: str,
        result: Any,
        request: Any = None,
        store_result: bool = True,
        state: str = states.SUCCESS,
    ) -> None:
        """Record a task's success, which may be held until the end of the loop's turn.

        Nobody but the gateway, which asks for it, has ever seen what a task with ``ignore_result``
        returns: where that is no JSON, the task has succeeded nevertheless, with None.
        """
        task = self.app.tasks.get(getattr(request, "task", None)) if store_result else None
        if getattr(task, "ignore_result", False) and not _is_json(result):
            result = None
        store = partial(super().mark_as_done, task_id, result, request, store_result, state)
        held = reply_connection(self.app).held
        if held is None or is_followed(self.app, request):
            store()
        else:
            held.end(store)

    def chord_error_from_stack(self, callback: Any, exc: BaseException | None = None) -> Any:
        """Record the failure of a chord's part, which Celery stores without the chord's request."""
        exc = exc or sys.exc_info()[1]
        found = super().chord_error_from_stack(callback, exc)
        for signature in _signatures(callback):
            options = signature["options"]
            if options.get("task_id") == callback.id and "reply_to" in options:
                traceback = getattr(found, "traceback", None)
                self.store_result(callback.id, exc, states.FAILURE, traceback, Context(options))
                break
        return found

    def _store(
        self,
        store: Callable[[], Any],
        task_id: str,
        result: Any,
        state: str,
        replied: bool | None = None,
        held: bool = False,
    ) -> Any:
        """Store a state by `store`; `replied`: whether it was; None: nobody has asked for that.

        `held`: Celery has been told already that it was written.
        """
        final = state in states.READY_STATES
        if final and replied is False and isinstance(self, DisabledBackend):
            lost_results(self.app).add(task_id, "it could not be replied, and nothing is stored")
            return result
        try:
            return store()
        except Exception as exc:
            if replied:
                # Celery would record a failure, which contradicts the answer that the sender has.
                log.exception("The result of task %s was replied, but could not be stored", task_id)
            elif not held and state not in LAST:
                raise
            elif final:
                lost_results(self.app).add(task_id, repr(exc))
            else:
                log.warning("The state %s of task %s could not be stored: %r", state, task_id, exc)
            return result


class ReplyBackend(ReplyMixin, ResultScript, RedisBackend):
    """Replies, or stores in Redis: ``appserver.reply_backend:ReplyBackend+redis://host/0``."""


class SentinelReplyBackend(ReplyMixin, ResultScript, SentinelBackend):
    """Replies, or stores in the Redis that Sentinel names; the URL is Celery's ``sentinel://``."""

    # Where Celery looks for the class.
    sentinel = sentinels


class StorelessReplyBackend(ReplyMixin, DisabledBackend):
    """Replies, and stores nothing."""


def must_store(request: Any) -> bool:
    """Tell whether the result of `request` is to be stored even if it was replied.

    The request of an unknown task has no headers at all, so it is not known what it asked for.
    """
    headers = getattr(request, "headers", None)
    if not headers:
        return True
    delivery = headers.get("delivery")
    return isinstance(delivery, dict) and bool(delivery.get("store"))


def is_short(text: Any) -> bool:
    """Tell whether a message can have `text` as an address, or as a correlation id."""
    try:
        return len(text.encode()) <= SHORT
    except (AttributeError, UnicodeEncodeError):
        return False


def json_result(result: Any, state: str) -> Any:
    """Return `result` as Celery writes it in JSON: what was raised as its type and arguments."""
    if isinstance(result, ResultBase):
        return result.as_tuple()
    if not (isinstance(result, BaseException) and state in states.EXCEPTION_STATES):
        return result
    cls = type(result)
    return {
        "exc_type": cls.__qualname__,
        "exc_message": ensure_serializable(result.args, _encode),
        "exc_module": cls.__module__,
    }


def encode(meta: dict[str, Any]) -> bytes:
    """Encode a result's JSON, without compression even where ``result_compression`` is set."""
    try:
        return _encode(meta).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise EncodeError(str(exc)) from exc


def _is_json(result: Any) -> bool:
    try:
        encode({"result": json_result(result, states.SUCCESS)})
    except EncodeError:
        return False
    return True


# A task in the place of another one answers, too -----------------------------------------------


def carry_over(
    body: Any = None, headers: Any = None, properties: Any = None, **_signal: object
) -> None:
    """Receive Celery's signal `before_task_publish`, and change what is about to be sent.

    Celery's ``self.replace()`` sends another message under the same task id, or a chain or a chord
    whose last task has it. That message, or that signature within it, gets the address for the
    reply and the ``delivery`` header of the task that is replaced. Its result is wanted.
    """
    if not current_task:
        return
    request = current_task.request
    delivery = (request.headers or {}).get("delivery")
    reply_to = request.reply_to
    replied = bool(reply_to) and reply_to.startswith(REPLY_PREFIXES)
    if delivery is None and not replied:
        return
    # Whatever the task in its place has by itself.
    own = {} if request.ignore_result else {"ignore_result": False}
    if headers.get("id") == request.id:
        headers.update(own)
        if replied:
            properties["reply_to"] = reply_to
            headers.setdefault("delivery", delivery)
        return
    embed = body[2] if isinstance(body, (tuple, list)) and len(body) == 3 else None
    for signature in _signatures(embed):
        options = signature["options"]
        if options.get("task_id") == request.id:
            options.update(own)
            if replied:
                options["reply_to"] = reply_to
                options["headers"] = {"delivery": delivery, **(options.get("headers") or {})}


def _signatures(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all signatures in `value`, which are dicts with `options`."""
    if isinstance(value, dict):
        if isinstance(value.get("options"), dict):
            yield value
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for each in list(value):
        yield from _signatures(each)

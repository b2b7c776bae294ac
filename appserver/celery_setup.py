"""What gives any Celery app the workers that the app server has."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import ImproperlyConfigured

from appserver.attempts import TakeBack
from appserver.bootsteps import PromptHub
from appserver.dead_letters import DeadLetters
from appserver.queues import named_queues
from appserver.reply_backend import ReplyMixin
from appserver.worker import PoisonAwareTasks

#: Where results may be stored: the schemes of Celery's URLs, and the backend for each.
STORES = {
    "redis": "appserver.reply_backend:ReplyBackend",
    "rediss": "appserver.reply_backend:ReplyBackend",
    "sentinel": "appserver.reply_backend:SentinelReplyBackend",
}
_BACKENDS = {**STORES, "disabled": "appserver.reply_backend:StorelessReplyBackend"}

#: What the app has not set itself. docs/appserver.md says why each is what it is.
DEFAULTS = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_consumer": "appserver.worker:PromptConsumer",
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # Else the worker ends where its own queue is locked by the connection that it has just
    # lost: another node of the cluster may not know of that yet.
    "broker_channel_error_retry": True,
    # Seconds until a task's own publish counts as lost; brokers other than AMQP's ignore both.
    "broker_transport_options": {"confirm_publish": True, "confirm_timeout": 5.0},
}


def setup(app: Celery) -> None:
    """Have the workers of `app` answer the gateway, and put away what keeps losing them.

    To be called before the app's tasks are used; its configuration may follow, and what that says
    takes precedence. To call it again changes nothing. Raises ImproperlyConfigured where tasks have
    been used already; a worker does so at its start where results go elsewhere than to Redis.
    """
    if ReplyingBackend in app.steps["worker"]:
        return
    if app.finalized:
        raise ImproperlyConfigured(
            "appserver.setup(app) has to be called before the app's tasks are used: its settings"
            " would come too late for them"
        )
    app.loader.override_backends = {**app.loader.override_backends, **_BACKENDS}
    app.steps["worker"].update((ReplyingBackend, PoisonAwareTasks, PromptHub))
    app.steps["consumer"].update((DeadLetters, TakeBack))
    if app.configured:
        _set_defaults(app, app.conf)
    else:
        app.on_after_configure.connect(_set_defaults, weak=False)


def _set_defaults(sender: Celery, source: Any, **_signal: object) -> None:
    defaults = dict(DEFAULTS)
    if names := os.environ.get("GATEWAY_QUEUES"):
        own = sender.amqp.Queues(())
        defaults["task_queues"] = [*own.values(), *named_queues(names, *own)]
    # Before Celery's own defaults, which come last. What `add_defaults` adds is found before the
    # settings that the app has from a module.
    named = {source.key_t(name) if source.key_t else name: defaults[name] for name in defaults}
    source.defaults.insert(-1, named)
    source.maps.insert(-1, named)


class ReplyingBackend(bootsteps.Step):
    """Start no worker whose results nobody would get; tell in its settings how it replies."""

    def create(self, worker: Any) -> None:
        app = worker.app
        backend = app.backend
        kind = f"{type(backend).__module__}:{type(backend).__qualname__}"
        if not isinstance(backend, ReplyMixin):
            raise ImproperlyConfigured(
                f"the result backend of the app {app.main!r} is {kind}, and its workers would not"
                f" answer the gateway: set result_backend to a URL that begins with"
                f" {', '.join(f'{scheme}://' for scheme in STORES)}, or to None"
            )
        # `gateway check` reads it there, and anybody who may ask workers for their settings: not
        # every Celery hides a password in it. What backends are made of is another attribute.
        app.backend_cls = app.backend_cls or app.conf.result_backend
        app.conf.result_backend = f"{kind}+{backend.as_uri()}" if backend.url else kind

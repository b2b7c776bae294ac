"""Set up any Celery app so that its workers work like the app server's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from billiard import get_start_method
from celery import Celery, bootsteps, signals
from celery.exceptions import ImproperlyConfigured
from kombu.serialization import prepare_accept_content

from appserver.beginnings import RemoveBeginnings
from appserver.bootsteps import PromptEvents, PromptHub, TellParameters
from appserver.dead_letters import DeadLetters
from appserver.fair import consume_fairly
from appserver.frozen_nodes import LeaveFrozenNode
from appserver.lost_results import CountLostResults
from appserver.poison import PoisonAwareTasks
from appserver.pools import SettledTasks
from appserver.process_pool import UseProcessPool
from appserver.queues import named_queues
from appserver.refused_queues import RefusedQueues
from appserver.reply_backend import ReplyMixin, carry_over
from appserver.task_stream import Stream
from appserver.watch import EndWithSupervisor

#: The backends by the scheme of the URL where results are stored.
STORES = {
    "redis": "appserver.reply_backend:ReplyBackend",
    "rediss": "appserver.reply_backend:ReplyBackend",
    "sentinel": "appserver.reply_backend:SentinelReplyBackend",
}
_BACKENDS = {**STORES, "disabled": "appserver.reply_backend:StorelessReplyBackend"}

#: Seconds until a task's own publish counts as lost; only AMQP brokers use the two options.
TRANSPORT_OPTIONS = {"confirm_publish": True, "confirm_timeout": 5.0}

#: Defaults for settings that the app does not set. docs/appserver.md has the reason for each.
DEFAULTS = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_consumer": "appserver.consumer:PromptConsumer",
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_connection_timeout": 3.0,
    # Otherwise the worker ends if its own queue is still locked by the connection that it has just
    # lost, which another node of the cluster may not have noticed yet.
    "broker_channel_error_retry": True,
    "broker_transport_options": TRANSPORT_OPTIONS,
}


def setup(app: Celery, fair: Mapping[str, int] | None = None) -> None:
    """Make the workers of `app` answer the gateway, and messages that crash workers dead letters.

    `fair` names the queues of routes with ``fair_by``, and their ``fair_queues``, as in
    ``{"orders": 16}``; without it GATEWAY_FAIR_QUEUES does.

    Call it before the app's tasks are used. The app's configuration may follow, and its settings
    take precedence. A second call changes nothing. Raises ImproperlyConfigured where tasks have
    been used already, or a number of queues is wrong; a worker ends at its start where results are
    not stored in Redis, it takes no JSON, or its processes would be no forks.
    """
    if ReplyingBackend in app.steps["worker"]:
        return
    if app.finalized:
        raise ImproperlyConfigured(
            "appserver.setup(app) has to be called before the app's tasks are used: call it right"
            " after the app is created"
        )
    override_backends(app)
    app.steps["worker"].update(
        (
            ReplyingBackend,
            CountLostResults,
            EndWithSupervisor,
            PoisonAwareTasks,
            PromptHub,
            SettledTasks,
            TellParameters,
            UseProcessPool,
        )
    )
    app.steps["consumer"].update(
        (DeadLetters, LeaveFrozenNode, PromptEvents, RefusedQueues, RemoveBeginnings, Stream)
    )
    consume_fairly(app, fair)
    if app.configured:
        _set_defaults(app, app.conf)
    # Also then, as a later config_from_object makes the configuration anew.
    app.on_after_configure.connect(_set_defaults, weak=False)


def override_backends(app: Celery) -> None:
    """Let the backends of `app` reply, whatever URL its setting has; the setting stays as it is."""
    app.loader.override_backends = {**app.loader.override_backends, **_BACKENDS}


def _set_defaults(sender: Celery, source: Any, **_signal: object) -> None:
    defaults = dict(DEFAULTS)
    if names := os.environ.get("GATEWAY_QUEUES"):
        own = sender.amqp.Queues(())
        defaults["task_queues"] = [*own.values(), *named_queues(names, *own)]
    _insert(defaults, source)


def _insert(defaults: Mapping[str, Any], source: Any) -> None:
    """Put `defaults` before Celery's own, which are last, into a configuration.

    `add_defaults` is not used, because its settings take precedence over those that the app has
    from a module.
    """
    named = {source.key_t(name) if source.key_t else name: defaults[name] for name in defaults}
    source.defaults.insert(-1, named)
    source.maps.insert(-1, named)


class ReplyingBackend(bootsteps.Step):
    """Refuse to start a worker that would not answer; tasks that replace others do it for them."""

    def create(self, worker: Any) -> None:
        app = worker.app
        backend = app.backend
        if not isinstance(backend, ReplyMixin):
            kind = f"{type(backend).__module__}:{type(backend).__qualname__}"
            raise SystemExit(  # Celery would write a traceback, as of an error in its code
                f"appserver: the result backend of the app {app.main!r} is {kind}, and its workers"
                " would not answer the gateway: set result_backend to a URL that begins with"
                f" {', '.join(f'{scheme}://' for scheme in STORES)}, or to None"
            )
        if "application/json" not in prepare_accept_content(app.conf.accept_content):
            raise SystemExit(
                f"appserver: the workers of the app {app.main!r} would take no message of the"
                " gateway: put 'json' into accept_content"
            )
        # Those that the app does not name; its own setting replaces all defaults.
        own = app.conf.broker_transport_options or {}
        app.conf.broker_transport_options = {**TRANSPORT_OPTIONS, **own}
        # Other processes than forks make an app of their own, which is not set up.
        method = getattr(worker, "pool_start_method", "fork")  # of Celery from 5.7
        if hasattr(worker.pool_cls, "BlockingPool") and {method, get_start_method()} != {"fork"}:
            raise SystemExit(
                f"appserver: the processes of the app {app.main!r} would be no forks, and would not"
                " answer the gateway: set worker_pool_start_method to 'fork', or use another pool,"
                " as -P threads"
            )
        if getattr(worker.pool_cls, "is_green", False) and not _limited(backend):
            # Celery makes a backend for each thread, here for each greenlet, which is a task: with
            # a client and a connection of its own, it costs more than the task.
            _insert({"result_backend_thread_safe": True}, app.conf)
        # Before the pool is started, whose processes publish as well.
        signals.before_task_publish.connect(carry_over, weak=False)


def _limited(backend: Any) -> bool:
    """Does `backend` raise an error where more tasks at a time need a connection than it may have?

    Where each task has a backend of its own, it needs only one.
    """
    return bool(getattr(backend, "connparams", {}).get("max_connections"))

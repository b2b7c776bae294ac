"""A worker of somebody's Celery app, on the servers of `gateway dev` instead of the app's own.

    python -m gateway.stack.attached APP QUEUE,QUEUE READY-FILE [OWN-QUEUE]

GATEWAY_BROKER_URL and GATEWAY_RESULT_BACKEND name broker and result store, as for the app server.
Whatever the app says of its own, and wherever it says so, is replaced before anything connects: a
worker for trying out must not take messages from a queue that serves others.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery, Task, bootsteps, signals
from celery.app.defaults import DEFAULTS
from celery.app.utils import find_app
from celery.exceptions import ImproperlyConfigured
from kombu import Connection, Queue

from appserver.celery_setup import STORES, ReplyingBackend
from appserver.settings import settings
from gateway.stack.stack import DESCRIBE

POOL, CONCURRENCY = "prefork", 2

# Celery reads these on each connection, and prefers them to the app's configuration.
_BROKER = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
_RESULTS = "CELERY_RESULT_BACKEND"
#: What the names of settings begin with that decide where an app connects to, and how.
_OURS = ("broker_", "redis_", "result_backend")
#: What the URLs of backends begin with that reply over AMQP.
_REPLYING = ("appserver.reply_backend:", "rpc:")


class Attachment:
    """The servers that an app is to use, as `environ` names them for the app server."""

    def __init__(self, environ: Mapping[str, str]):
        named = settings(environ)
        self._broker = named["broker_url"]
        results = named["result_backend"]
        # The app may have no `appserver.setup` that makes its own backend one that replies.
        named["result_backend"] = f"{STORES[results.partition(':')[0]]}+{results}"
        self._variables = {
            **dict.fromkeys(_BROKER, self._broker),
            _RESULTS: named["result_backend"],
        }
        self._settings = {
            name: value for name, value in {**DEFAULTS, **named}.items() if name.startswith(_OURS)
        }

    def prepare(self) -> None:
        """Set the variables: also other apps in this process then use these servers."""
        os.environ.update(self._variables)

    def apply(self, app: Celery) -> None:
        """Replace what `app` says of its broker and its result backend.

        Raises ImproperlyConfigured where it would connect to another broker all the same.
        """
        self.prepare()
        app.backend_cls = None
        _ = app.conf["task_default_queue"]  # loads a configuration that was only named so far
        app.conf.update(self._settings)
        wanted = _addresses(Connection(self._broker))
        for connection in (app.connection_for_read(), app.connection_for_write()):
            if _addresses(connection) != wanted:
                raise ImproperlyConfigured(
                    f"the app connects to {connection.as_uri()}, whatever it is told: "
                    "its worker is not started"
                )


def attach(app: Celery, attachment: Attachment, own_queue: str = "") -> None:
    """Have the workers of `app` use the `attachment`, and consume `own_queue` too."""

    class Attach(bootsteps.Step):
        """Repeat it after the app's own signal handlers, and before anything connects."""

        def __init__(self, worker: Any, **_: Any):
            attachment.apply(app)
            if own_queue:
                app.amqp.queues.select_add(Queue(own_queue, auto_delete=True))

    # Not the attribute, which is what the variables say.
    own = str(app.conf.get("result_backend") or "")
    replies = ReplyingBackend in app.steps["worker"] or own.startswith(_REPLYING)

    def describe(*_: Any) -> dict[str, Any]:
        names = sorted(name for name in app.tasks if not name.startswith(("celery.", DESCRIBE)))
        return {"tasks": names, "replies": replies}

    attachment.apply(app)
    app.steps["worker"].add(Attach)
    app.task(describe, name=DESCRIBE, base=Task, ignore_result=False, shared=False)


def _addresses(connection: Connection) -> list[str]:
    """Return the URLs that `connection` tries in turn."""
    return connection.alt or [connection.as_uri(include_password=True)]


def load(name: str) -> Celery:
    """Return the Celery app called `name`, as after ``celery -A``.

    Ends the process, with a sentence, where there is none; what the app's own code raises is
    raised.
    """
    module, colon, attribute = name.partition(":")
    try:
        app = find_app(name)
    except ModuleNotFoundError as exc:
        if colon and exc.name == name:
            sys.exit(f"--app {name}: {module} has no Celery app called {attribute}")
        if not f"{module}.".startswith(f"{exc.name}."):
            raise
        sys.exit(
            f"--app {name}: there is no module {exc.name} in {Path.cwd()}, nor is one installed; "
            "start it where `celery -A` finds the app"
        )
    except AttributeError as exc:
        if not isinstance(exc.obj, ModuleType):
            raise
        sys.exit(f"--app {name}: {exc.obj.__name__} has no Celery app called {exc.name}")
    if not isinstance(app, Celery):
        sys.exit(f"--app {name}: this is no Celery app")
    return app


def main() -> None:
    """Run the worker; the ready file is made once it consumes its queues."""
    name, queues, ready = sys.argv[1:4]
    own_queue = "".join(sys.argv[4:5])
    attachment = Attachment(os.environ)
    attachment.prepare()
    app = load(name)
    attach(app, attachment, own_queue)
    signals.worker_ready.connect(lambda **_: Path(ready).touch(), weak=False)
    worker = app.Worker(
        hostname=f"worker-{secrets.token_hex(4)}@localhost",
        pool_cls=POOL,
        concurrency=CONCURRENCY,
        queues=queues,
        loglevel="INFO",
        # Events between workers, which are of no use to a lone one.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()

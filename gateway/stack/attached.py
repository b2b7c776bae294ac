"""Run a worker of the user's Celery app on the servers of `gateway dev`, not on the app's own.

    python -m gateway.stack.attached APP QUEUE,QUEUE READY-FILE [OWN-QUEUE]

GATEWAY_BROKER_URL and GATEWAY_RESULT_BACKEND name broker and result store, as for the app server.
The app's own settings for these are replaced before anything connects, wherever they are: a worker
for development must not take messages from the queues of a deployment.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from celery import Celery, Task, bootsteps, signals
from celery.app.defaults import DEFAULTS
from celery.app.utils import find_app
from celery.exceptions import ImproperlyConfigured
from kombu import Connection, Queue

from appserver.bootsteps import PARAMETERS, TellParameters
from appserver.celery_setup import ReplyingBackend, override_backends
from appserver.lost_results import CountLostResults
from appserver.settings import settings
from gateway.stack.stack import DESCRIBE

POOL, CONCURRENCY = "prefork", 2
_LONG = 5.0  # seconds after which an import is unusually long

# Celery reads these on each connection, and prefers them to the app's configuration.
_BROKER = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
_RESULTS = "CELERY_RESULT_BACKEND"
#: The prefixes of the settings that decide where an app connects to, and how long results last.
_OURS = ("broker_", "redis_", "result_backend", "result_expires")
#: The prefixes of the URLs of backends that reply over AMQP.
_REPLYING = ("appserver.reply_backend:", "rpc:")


class Attachment:
    """Makes an app use the servers that `environ` names, as the app server would."""

    def __init__(self, environ: Mapping[str, str]):
        named = settings(environ)
        self._broker = named["broker_url"]
        self._variables = {
            **dict.fromkeys(_BROKER, self._broker),
            _RESULTS: named["result_backend"],
        }
        self._settings = {
            name: value for name, value in {**DEFAULTS, **named}.items() if name.startswith(_OURS)
        }

    def prepare(self) -> None:
        """Set the environment variables, so that other apps in this process use these servers."""
        os.environ.update(self._variables)

    def apply(self, app: Celery) -> None:
        """Replace the settings of `app` for its broker and its result backend.

        Raises ImproperlyConfigured where it would connect to another broker nevertheless.
        """
        self.prepare()
        app.backend_cls = None
        # The app may not call `appserver.setup`.
        override_backends(app)
        _ = app.conf["task_default_queue"]  # this loads a configuration that is not loaded yet
        app.conf.update(self._settings)
        wanted = _addresses(Connection(self._broker))
        for connection in (app.connection_for_read(), app.connection_for_write()):
            if _addresses(connection) != wanted:
                raise ImproperlyConfigured(
                    f"the app connects to {connection.as_uri()} and ignores its settings: "
                    "its worker is not started"
                )


def attach(app: Celery, attachment: Attachment, own_queue: str = "") -> None:
    """Make the workers of `app` use the `attachment`, and consume `own_queue` as well."""

    class Attach(bootsteps.Step):
        """Applies it again after the app's own signal handlers, and before anything connects."""

        def __init__(self, worker: Any, **_: Any):
            attachment.apply(app)
            if own_queue:
                app.amqp.queues.select_add(Queue(own_queue, auto_delete=True))

    # Not from the attribute, which has the value of the variables.
    own = str(app.conf.get("result_backend") or "")
    replies = ReplyingBackend in app.steps["worker"] or own.startswith(_REPLYING)

    def describe(*_: Any) -> dict[str, Any]:
        tasks = {
            name: getattr(task, PARAMETERS, "")
            for name, task in sorted(app.tasks.items())
            if not name.startswith(("celery.", DESCRIBE))
        }
        return {"tasks": tasks, "replies": replies}

    attachment.apply(app)
    # What it tells shows `gateway check` that the worker replies.
    app.steps["worker"].update((Attach, CountLostResults, TellParameters))
    app.task(describe, name=DESCRIBE, base=Task, ignore_result=False, shared=False)


def _addresses(connection: Connection) -> list[str]:
    """Return the URLs that `connection` tries one after the other."""
    return connection.alt or [connection.as_uri(include_password=True)]


def load(name: str) -> Celery:
    """Return the Celery app called `name`, as ``celery -A`` finds it.

    Ends the process with a sentence where there is none, or where its import fails. While an import
    lasts, the line where it is stands on standard error after some seconds.
    """
    waiting = threading.Timer(_LONG, _tell_where, (name, sys._getframe()))
    waiting.daemon = True
    waiting.start()
    try:
        return _found(name)
    finally:
        waiting.cancel()


def _found(name: str) -> Celery:
    module, colon, attribute = name.partition(":")
    try:
        app = find_app(name)
    except ModuleNotFoundError as exc:
        if colon and exc.name == name:
            sys.exit(_no_app(name, module, attribute))
        if not f"{module}.".startswith(f"{exc.name}."):
            sys.exit(_failed(name, exc))
        remedy = "start it where `celery -A` finds the app"
        if name.endswith(".py") and Path(name).exists():
            remedy = f"did you mean --app {'.'.join(Path(name).with_suffix('').parts)}?"
        sys.exit(
            f"--app {name}: there is no module {exc.name} in {Path.cwd()}, nor is one installed; "
            f"{remedy}"
        )
    except AttributeError as exc:
        owner = exc.obj.__name__ if isinstance(exc.obj, ModuleType) else ""
        if not f"{module}.".startswith(f"{owner}."):
            sys.exit(_failed(name, exc))
        sys.exit(_no_app(name, owner, attribute or "app or celery"))
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever the app's own code raises
        sys.exit(_failed(name, exc))
    if not isinstance(app, Celery):
        sys.exit(_no_app(name, module, attribute))
    return app


def _no_app(name: str, module: str, attribute: str) -> str:
    """Say that a module has no such app, and which ones it has."""
    known = vars(sys.modules[module]).items()
    apps = [f"{module}:{each}" for each, app in known if isinstance(app, Celery)]
    remedy = "name the module in which your code calls Celery(), as --app MODULE:NAME"
    if apps:
        remedy = f"did you mean --app {' or '.join(apps)}?"
    return f"--app {name}: {module} has no Celery app called {attribute}; {remedy}"


def _tell_where(name: str, caller: FrameType) -> None:
    """Say at which line the main thread is; what is called below `caller` is the import."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = traceback.extract_stack(frame)[len(traceback.extract_stack(caller)) :]
    sys.stderr.write(
        f"--app {name}: its import has taken {_LONG:g} s and goes on{_last_line(stack)}; "
        "an import must neither wait nor start a worker\n"
    )
    sys.stderr.flush()


def _last_line(stack: Iterable[traceback.FrameSummary]) -> str:
    """Return where a stack is in the code below this folder; "": nowhere."""
    here = str(Path.cwd())
    own = (each for each in stack if each.filename.startswith(here))
    last = [each for each in own if "site-packages" not in each.filename][-1:]
    return "".join(f" in {each.filename}, line {each.lineno}: {each.line}" for each in last)


def _failed(name: str, exc: BaseException) -> str:
    """Return what the import of an app has raised, and the last line below this folder."""
    at = _last_line(traceback.extract_tb(exc.__traceback__))
    error = "".join(traceback.format_exception_only(exc)).strip()
    if isinstance(exc, SyntaxError):
        at = f" in {exc.filename}, line {exc.lineno}: {(exc.text or '').strip()}"
        error = f"{type(exc).__name__}: {exc.msg}"
    module = name.partition(":")[0]
    return (
        f"--app {name}: its import fails{at}\n"
        f"{error}; `python -c 'import {module}'` shows the whole traceback"
    )


def main() -> None:
    """Run the worker; the ready file is created when it consumes its queues."""
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
        # Events between workers, which are of no use to a single one.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()

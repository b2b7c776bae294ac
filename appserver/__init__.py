"""The app server: Celery workers that run the relay's tasks and answer over AMQP.

``celery -A appserver worker`` starts one, of the app ``appserver.app``. An app of one's own gets
all that it has by ``appserver.setup(app)``; its tasks answer with `appserver.Answer`, and
`appserver.delivery()` tells them what is known about the webhook. To import this package makes no
app and imports nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appserver.answers import Answer
    from appserver.celery_app import app
    from appserver.celery_setup import setup
    from appserver.received import delivery

__all__ = ["Answer", "app", "delivery", "setup"]

# No submodule may have one of these names, because importing it would replace the attribute.
_HOMES = {"Answer": "answers", "app": "celery_app", "delivery": "received", "setup": "celery_setup"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value

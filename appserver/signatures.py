"""Let a worker tell the parameters of its tasks, so that `gateway check` compares them.

Celery's command ``registered`` answers with attributes of the tasks that the question names. A
worker without this has no such attribute, and answers without it.
"""

from __future__ import annotations

import inspect
from typing import Any

from celery import bootsteps

#: The attribute. `gateway check` asks for it.
PARAMETERS = "gateway_parameters"


class TellParameters(bootsteps.Step):
    """Note the parameters of each task, as ``(order, currency=..., *, note=...)``."""

    def create(self, worker: Any) -> None:
        for task in worker.app.tasks.values():
            # Some callables, as those that are written in C, have no signature.
            try:
                found = inspect.signature(task.run)
            except (TypeError, ValueError):
                continue
            setattr(task, PARAMETERS, str(_plain(found)).replace("=Ellipsis", "=..."))


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without annotations, and without the values of defaults."""
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=empty if each.default is empty else ...)
        for each in signature.parameters.values()
    ]
    return inspect.Signature(parameters)

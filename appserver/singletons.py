"""Objects of which a process has one for each app, and what a child forgets after a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def one_of_app(name: str, make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that returns the attribute `name` of an app, made at its first call."""

    def find(app: Any) -> T:
        try:
            found: T = getattr(app, name)
        except AttributeError:
            # If several threads come here at the same time, all use the object of the first.
            found = vars(app).setdefault(name, make(app))
        return found

    return find


def call_after_fork(method: Callable[[], object]) -> None:
    """Call a `method` in each child after a fork, as long as its object is in use."""
    reference = weakref.WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: (found := reference()) and found())

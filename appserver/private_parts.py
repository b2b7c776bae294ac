"""Use private parts of Celery, kombu and py-amqp only where they are there.

A later version may not have them any more. What needs them is left out then, and the worker does as
plain Celery does.
"""

from __future__ import annotations

import logging
from functools import cached_property
from importlib import import_module

log = logging.getLogger(__name__)


class PrivateParts:
    """The private names that something needs, each as ``module:Class.name``.

    ``otherwise`` says what the worker does where one of them is missing.
    """

    def __init__(self, otherwise: str, *names: str):
        self.otherwise, self.names = otherwise, names

    @cached_property
    def there(self) -> bool:
        """Whether all are there; the first that is missing is logged, once in a process."""
        for name in self.names:
            if not is_there(name):
                log.warning("%s is missing in this version: %s", name, self.otherwise)
                return False
        return True


def is_there(name: str) -> bool:
    """Tell whether a class has an attribute, or a method that sets or reads it."""
    module, _, path = name.partition(":")
    owner_name, _, attribute = path.partition(".")
    try:
        owner = getattr(import_module(module), owner_name, None)
    except ImportError:
        return False
    methods = (vars(each).values() for each in getattr(owner, "__mro__", ()))
    codes = (getattr(each, "__code__", None) for group in methods for each in group)
    return hasattr(owner, attribute) or any(
        attribute in code.co_names for code in codes if code is not None
    )

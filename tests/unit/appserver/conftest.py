"""Apps, as projects make theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from celery import Celery


@pytest.fixture
def celery() -> Iterator[Callable[..., Celery]]:
    """Make apps, as `Celery` does; all are closed at the end."""
    with ExitStack() as opened:
        yield lambda *args, **options: opened.enter_context(
            Celery(*args, set_as_current=False, **options)
        )

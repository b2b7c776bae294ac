"""One check of many values as one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_each(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run a test with each of `values` as its argument `name`; a failure says with which.

    Several names, as in "name, vector", take the parts of a value.
    """
    names, cases = name.split(", "), list(values)
    assert cases, f"there is no {name}"

    def looped(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for case in cases:
                try:
                    parts = case if len(names) > 1 else (case,)
                    test(**dict(zip(names, parts, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as exc:  # also where nothing was raised
                    exc.add_note(f"{name}: {case!r:.300}")
                    raise

        own = inspect.signature(test)
        others = [each for each in own.parameters.values() if each.name not in names]
        run.__signature__ = own.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return looped

"""Configurations of gateways, written from Python's values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def route(path: str, task: str | None = "faults.run", **settings: Any) -> str:
    """Write a route, whose task notes its executions; None: the one that a gateway has itself."""
    named = {"path": path} | ({"task": task} if task else {})
    return _table("[[routes]]", named | settings)


def source(name: str, scheme: str, **settings: Any) -> str:
    """Write a sender of requests."""
    return _table(f"[sources.{name}]", {"scheme": scheme, **settings})


def toml(sources: Mapping[str, Mapping[str, Any]], routes: Iterable[Mapping[str, Any]]) -> str:
    """Write sources by their names, and routes."""
    written = [_table(f"[sources.{name}]", options) for name, options in sources.items()]
    return "".join([*written, *(_table("[[routes]]", route) for route in routes)])


def _table(head: str, settings: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}\n" for key, value in settings.items()]
    return "".join([f"\n{head}\n", *lines])


def _value(value: Any) -> str:
    """JSON's texts, numbers and booleans are TOML's as well."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)

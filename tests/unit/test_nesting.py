"""Values of JSON, however deep they are nested."""

from __future__ import annotations

from gateway.nesting import walk


def test_values_are_walked_level_by_level():
    value = {"a": [1, {"b": None}], "c": "x"}
    assert list(walk(value)) == [value, value["a"], "x", 1, {"b": None}, None]
    assert list(walk("x")) == ["x"]


def test_a_deep_value_is_walked_without_a_step_for_each_level_above_it():
    value: object = "innermost"
    for _ in range(100_000):
        value = [value]
    *_, last = walk(value)
    assert last == "innermost"

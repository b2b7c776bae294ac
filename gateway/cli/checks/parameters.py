"""Check whether tasks take the arguments that routes give them, where workers tell that."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from gateway.cli.checks.finding import Finding, fail, listed
from gateway.config.route import Route
from gateway.config.task import TaskSettings
from gateway.similar import similar

#: What a task is called with unless the route says otherwise.
_DEFAULT = ("query", "headers", "body")


class Parameters:
    """The parameters of a task, read from ``(order, /, currency=..., *rest, note, **more)``.

    Raises ValueError or SyntaxError for any other text.
    """

    def __init__(self, text: str):
        (function,) = ast.parse(f"def task{text}: 0").body
        if not isinstance(function, ast.FunctionDef):
            raise ValueError(text)
        found = function.args
        only, either = (
            [each.arg for each in arguments] for arguments in (found.posonlyargs, found.args)
        )
        #: Those of a position, in order; whether there may be any number; and those with a name.
        self.positions = [*only, *either]
        self.rest, self.any_name = found.vararg is not None, found.kwarg is not None
        self.names = [*either, *(each.arg for each in found.kwonlyargs)]
        self._defaults = set(self.positions[len(self.positions) - len(found.defaults) :])
        by_name = zip(found.kwonlyargs, found.kw_defaults, strict=True)
        self._defaults |= {each.arg for each, default in by_name if default is not None}

    def problems(self, positional: int, names: Sequence[str], sure: Sequence[str]) -> Iterator[str]:
        """Say what does not fit of a call with so many arguments, and with those `names`.

        `sure` are the names that each call has.
        """
        if positional > len(self.positions) and not self.rest:
            takes = f"at most {len(self.positions)}" if self._defaults else len(self.positions)
            yield f"it takes {takes} by position, and gets {positional}"
        taken = self.positions[:positional]
        for name in names:
            if name in taken:
                yield f"it gets `{name}` twice, by position and by name"
            elif name not in self.names and not self.any_name:
                near = similar(name, [each for each in self.names if each not in names])
                takes = f"it takes `{near}`" if near else f"it does not take `{name}`"
                yield f"{takes}, and gets `{name}`"
        needed = [*self.positions, *(name for name in self.names if name not in self.positions)]
        there = {*taken, *(name for name in sure if name in self.names), *self._defaults}
        lacking = [each for each in needed if each not in there]
        if lacking:
            missing = " and ".join(f"`{name}`" for name in lacking)
            pronoun = "it" if len(lacking) == 1 else "them"
            yield f"it needs {missing}, and does not always get {pronoun}"


def unfit(task: str, routes: Sequence[Route], signatures: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each call of `task` that does not fit.

    `signatures` has the task's parameters, each with the name of a worker which has told them.
    """
    found = {}
    for route in routes:
        for settings in (route, *route.also):
            for text, worker in signatures.items():
                if settings.task == task and (problems := _problems(settings, text)):
                    about = f"route {route.path}: {'; '.join(problems)} (it is {task}{text})"
                    found[about] = fail(f"task {task}", f"{worker}, {about}", _remedy(settings))
    return list(found.values())


def _problems(settings: TaskSettings, text: str) -> list[str]:
    try:
        parameters = Parameters(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # from a program that is no worker of Celery's
    if settings.args is None and settings.kwargs is None:
        return list(parameters.problems(len(_DEFAULT), (), ()))
    named = settings.kwargs or {}
    sure = [name for name, argument in named.items() if not argument.optional]
    return list(parameters.problems(len(settings.args or ()), list(named), sure))


def _remedy(settings: TaskSettings) -> str:
    if settings.args is None and settings.kwargs is None:
        call = listed(_DEFAULT)
        return f"set args or kwargs in the route, which calls it with {call} without them"
    return "correct args or kwargs in the route"

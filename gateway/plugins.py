"""Find strategies, schemes and commands by name: the gateway's own, and other packages'.

One of the gateway's own is a file in a folder, so no table has its name. One of another package is
an entry point. What it takes to read the entry points is saved where an own file has the name.
Nothing is imported before it is used: what a list says of a module is read from its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from os import listdir, path

from gateway.errors import PluginError

TYPE_CHECKING = False  # not imported: `gateway --help` would take longer, as with dataclasses
if TYPE_CHECKING:
    from typing import Any

#: The package of the gateway's own.
OURS = "gateway"
#: The group of the entry points of each kind.
GROUPS = {kind: f"celery_gateway.{kind}" for kind in ("commands", "sources", "strategies")}
_FOLDER = path.dirname(__file__)


class Plugin:
    """A module of a ``kind``, which is a key of `GROUPS`, under its ``name``.

    ``attribute`` is what is used of the module; empty: the module itself, or its only class.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        module: str,
        attribute: str = "",
        package: str = OURS,
        version: str = "",
    ):
        self.kind, self.name, self.module, self.attribute = kind, name, module, attribute
        self.package, self.version = package, version

    def load(self) -> Any:
        """Import it. Raises `PluginError` where a module of another package cannot be imported."""
        with self.named():
            module = import_module(self.module)
            return getattr(module, self.attribute) if self.attribute else module

    def load_class(self, base: type[Any]) -> type[Any]:
        """Import it, and return its subclass of `base`; raises as `load` does."""
        found = self.load()
        with self.named():
            classes = [found] if isinstance(found, type) else _defined(found)
            classes = [each for each in classes if issubclass(each, base)]
            if len(classes) != 1:
                names = ", ".join(each.__name__ for each in classes) or "none"
                raise TypeError(f"it has to define one subclass of {base.__name__}, not {names}")
        return classes[0]

    def summary(self) -> str:
        """Return the first line of its module's docstring; empty: it has none."""
        lines = (line.strip() for line in self.text().splitlines())
        first = next((line for line in lines if line and line[0] != "#"), "")
        return first.strip('" ') if first.startswith('"') else ""

    def call(self, name: str) -> dict[str, Any]:
        """Return the keyword arguments, which are literals, of the call that `name` is set to."""
        import ast  # imported when it is used: it takes time

        with self.named():
            for node in ast.parse(self.text()).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    value = node.value
                    with suppress(ValueError):
                        if isinstance(value, ast.Call):
                            return {str(e.arg): ast.literal_eval(e.value) for e in value.keywords}
                    raise TypeError(f"{name} has to be a call whose arguments are literals")
        return {}

    def text(self) -> str:
        """Return the module's text. For this, only the packages that contain it are imported."""
        if self.package == OURS:
            where = path.join(_FOLDER, *self.module.split(".")[1:])
            with open(f"{where}.py", encoding="utf-8") as file:
                return file.read()
        from importlib.util import find_spec

        with self.named():
            spec = find_spec(self.module)
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError(f"No module named {self.module!r}")
            with open(spec.origin, encoding="utf-8") as file:
                return file.read()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Raise `PluginError`, which names it, for what another package has done wrong."""
        try:
            yield
        except Exception as exc:
            if self.package == OURS:
                exc.add_note(f"The module is {self.module}.")
                raise
            raise PluginError(
                f"the package {self.package} {self.version} brings {self.name} "
                f"({GROUPS[self.kind]}), and {self.module} cannot be used: "
                f"{type(exc).__name__}: {exc}; correct or uninstall the package"
            ) from exc


class Plugins(Mapping[str, Plugin]):
    """What there is of a ``kind``, by name; the gateway's own come first and cannot be replaced.

    `modules` is the name of an own module with ``{}`` in the place of its name; `own` has further
    names, which need no module.
    """

    def __init__(self, kind: str, modules: str, own: tuple[str, ...] = ()):
        self._kind = kind
        folder, _, end = f"{modules}.py".rpartition(".{}")
        files = listdir(path.join(_FOLDER, *folder.split(".")[1:]))
        names = [each.removesuffix(end) for each in files if each.endswith(end) and each[0] != "_"]
        #: The gateway's own.
        self.own = {
            name: Plugin(kind, name, modules.format(name)) for name in sorted([*names, *own])
        }

    def __getitem__(self, name: str) -> Plugin:
        return self.own.get(name) or self._others[name]

    def __iter__(self) -> Iterator[str]:
        yield from {**self._others, **self.own}

    def __len__(self) -> int:
        return len({**self._others, **self.own})

    @property
    def _others(self) -> dict[str, Plugin]:
        return {each.name: each for each in others() if each.kind == self._kind}


@cache
def others() -> list[Plugin]:
    """Return what other packages bring, by package and name."""
    from importlib.metadata import entry_points

    found = []
    for kind, group in GROUPS.items():
        for point in entry_points(group=group):
            where = (point.name, point.module, point.attr)
            name = point.dist.name if point.dist else ""
            found.append(Plugin(kind, *where, name, point.dist.version if point.dist else ""))
    return sorted(found, key=lambda each: (each.package, each.kind, each.name))


def _defined(module: Any) -> list[type]:
    """Return the classes that a module defines, and not those that it imports."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]

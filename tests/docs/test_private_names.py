"""Private names of dependencies that we use are named in setup.cfg, beside the bound they need."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import appserver
import gateway

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "appserver")
#: Python's own: of namedtuple, os, argparse, abc and typing.
STANDARD = {
    *("_asdict", "_replace", "_fields", "_make", "_exit", "_generate_next_value_"),
    *("_actions", "_SubParsersAction", "_abc_impl", "_is_protocol"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def trees() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield ast.parse(path.read_text())


def own(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module itself gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # slots, setattr
            yield node.value
        elif isinstance(node, ast.arg):
            yield node.arg


def read() -> Iterator[str]:
    """Yield the private attributes that are read and that no module of ours gives."""
    modules = list(trees())
    ours = {name for tree in modules for name in own(tree)}
    for tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
                yield node.attr


def replaced() -> Iterator[str]:
    """Yield the private attributes of others' classes that classes of ours replace."""
    for package in (appserver, gateway):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in PACKAGES:
            for cls in vars(module).values():
                if inspect.isclass(cls) and cls.__module__ == name:
                    yield from replaced_by(cls)


def replaced_by(cls: type) -> Iterator[str]:
    for base in cls.__mro__[1:]:
        top = base.__module__.split(".")[0]
        if top not in PACKAGES and top not in sys.stdlib_module_names and top != "pydantic":
            yield from filter(is_private, vars(cls).keys() & vars(base).keys())


def test_private_names_of_dependencies_are_those_in_setup_cfg():
    comments = re.findall(r"^ +# (.*)$", (ROOT / "setup.cfg").read_text(), re.M)
    named = set(re.findall(r"\b_\w+", " ".join(comments)))
    used = {*read(), *replaced()} - STANDARD
    assert used - named == set(), "these are not named"
    # What ours replace on an object, or name in a text, is found by its spelling.
    assert {name for name in named - used if not in_code(name)} == set(), "these are not used"


def in_code(name: str) -> bool:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return any(re.search(rf"\b{name}\b", path.read_text()) for path in files)

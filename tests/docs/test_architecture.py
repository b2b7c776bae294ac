"""ARCHITECTURE.md's map and rules are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.test_documents import ROOT, text

PACKAGE = ROOT / "gateway"


def floors() -> dict[str, int]:
    """Return the line of the map on which each module or package of `gateway/` stands."""
    house = text("ARCHITECTURE.md").split("\n## The house\n")[1].split("\n## ")[0]
    found = {}
    for number, line in enumerate(house.splitlines()):
        names = re.match(r"    ((?:\w+(?:\.py|/) ?)+)", line)
        for name in names[1].split() if names else ():
            found[name] = number
    return found


def room(module: str) -> str:
    """Return what the map calls the place where `module` is, as in ``gateway.cli.send``."""
    name = module.split(".")[1]
    return f"{name}/" if (PACKAGE / name).is_dir() else f"{name}.py"


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the package, its name and what it says."""
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports from the package when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gateway"):
            for alias in node.names:
                inside = PACKAGE.joinpath(*node.module.split(".")[1:], alias.name)
                known = inside.is_dir() or inside.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if known else node.module


def test_imports_only_go_down_the_floors():
    floor, wrong = floors(), []
    for name, tree in modules():
        if name in ("gateway", "gateway.__main__"):
            continue
        for other in imported(tree):
            if other == "gateway":  # the version
                continue
            here, there = room(name), room(other)
            if here != there and floor[here] > floor[there]:
                wrong.append(f"{here} is below {there}, which it imports")
    assert sorted(set(wrong)) == []


def test_the_environment_is_read_where_the_map_says():
    readers = {
        name.removeprefix("gateway.").partition(".")[0]
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    sentence = re.search(r"The environment is read by (.*?)\.", text("ARCHITECTURE.md"), re.S)
    assert set(re.findall(r"`(\w+)", sentence[1])) == readers


def test_the_map_names_only_what_exists():
    missing = [name for name in floors() if not (PACKAGE / name).exists()]
    assert [name for name in missing if not (ROOT / name).exists()] == []

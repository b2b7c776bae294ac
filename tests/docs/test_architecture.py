"""ARCHITECTURE.md's lists and rules are those of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

from tests.docs.test_documents import ROOT, text

PACKAGE = ROOT / "gateway"


def section(title: str) -> str:
    return text("ARCHITECTURE.md").split(f"## {title}\n")[1].split("\n## ")[0]


def listed() -> list[str]:
    """Return the packages of the gateway in the order of the table."""
    return re.findall(r"^\| `(\w+)/` \|", section("The packages"), re.MULTILINE)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the package, its name and what it says."""
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def test_the_list_is_the_contract_that_is_checked():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name for layer in layers for name in re.split(r" [|:] ", layer)]
    packages = [name for name in names if (PACKAGE / name).is_dir()]

    assert packages == listed(), "pyproject.toml's layers and ARCHITECTURE.md's table differ"
    assert set(packages) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert [name for name in names if not (PACKAGE / name).exists()] == [
        path.stem for path in sorted(PACKAGE.glob("[a-z]*.py"))
    ], "add each module of gateway/ to the last layer in pyproject.toml, in alphabetical order"


def test_packages_inside_packages_are_listed():
    inside = re.findall(r"^\| `(\w+/\w+)/` \|", section("The packages"), re.MULTILINE)
    assert sorted(inside) == sorted(
        str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.glob("*/*/__init__.py")
    )


def test_the_first_line_of_each_module_says_what_it_is():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "appserver").rglob("*.py")]
    said = {path: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in files}
    without = [str(path.relative_to(ROOT)) for path, docstring in said.items() if not docstring]
    assert not without, f"write a docstring at the beginning of {', '.join(without)}"


def test_the_environment_is_read_where_the_rules_say():
    readers = {
        name.removeprefix("gateway.").partition(".")[0]
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    sentence = re.search(r"The environment is read by (.*?)\.", text("ARCHITECTURE.md"), re.S)
    assert set(re.findall(r"`(\w+)", sentence[1])) == readers


def test_files_that_are_named_exist():
    named = set(re.findall(r"`(?:gateway/)?([\w/]+\.py)`", text("ARCHITECTURE.md")))
    known = [ROOT, PACKAGE, *(PACKAGE / name for name in listed())]
    assert [name for name in named if not any((at / name).exists() for at in known)] == []


def test_it_can_be_read_at_once():
    assert len(text("ARCHITECTURE.md").encode()) <= 8_192, "shorten it: a reader keeps it in mind"

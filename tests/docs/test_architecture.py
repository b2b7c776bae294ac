"""ARCHITECTURE.md's lists and rules are those of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields

from gateway.relay.delivery_in_flight import STAGES, Stage
from tests.docs.test_documents import ROOT, text

PACKAGE = ROOT / "gateway"


def section(title: str) -> str:
    return text("ARCHITECTURE.md").split(f"## {title}\n")[1].split("\n## ")[0]


def listed() -> list[str]:
    """Return the packages of the gateway in the order of the list."""
    inside = section("The packages").split("Beside the package")[0]
    return re.findall(r"^    (\w+)/", inside, re.MULTILINE)


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

    assert packages == listed()
    assert set(packages) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert [name for name in names if not (PACKAGE / name).exists()] == [
        path.stem for path in sorted(PACKAGE.glob("[a-z]*.py"))
    ]


def test_packages_inside_packages_are_listed():
    inside = re.findall(r"^      (\w+)/", section("The packages"), re.MULTILINE)
    assert sorted(inside) == sorted(path.parent.name for path in PACKAGE.glob("*/*/__init__.py"))


def in_the_list_of_modules() -> dict[str, list[str]]:
    """Return the modules that the list has of each package; `gateway` has those in no other."""
    found: dict[str, list[str]] = {}
    package = ""
    for line in section("The packages").split("### Modules\n")[1].splitlines():
        if heading := re.match(r"    (?:(\w+)/|\(modules\))", line):
            package = heading[1] or PACKAGE.name
        if line.startswith("    "):
            found.setdefault(package, []).extend(re.findall(r"\w+\.py", line))
    return found


def test_each_module_is_listed_or_the_line_of_its_package_says_what_it_is():
    introduction = section("The packages").split("### Modules\n")[1].partition("\n    ")[0]
    directories = [*PACKAGE.rglob("__init__.py"), ROOT / "appserver" / "__init__.py"]
    packages = {path.parent.name: path.parent for path in directories}
    modules = in_the_list_of_modules()

    assert sorted([*re.findall(r"`(\w+)/`", introduction), *modules]) == sorted(packages)
    assert {name: sorted(some) for name, some in modules.items()} == {
        name: sorted(path.name for path in packages[name].glob("[a-z]*.py")) for name in modules
    }


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


def test_what_a_delivery_does_is_the_table_of_the_code():
    events = [each.name for each in fields(Stage)][1:]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table("it waits for")]
    assert rows == [
        ["it waits for", *events],
        *(
            [stage.waits_for, *(_action(getattr(stage, event)) for event in events)]
            for stage in STAGES
        ),
    ]


def table(begin: str) -> list[str]:
    """Return the lines of the table whose first line begins so, without the line below that."""
    lines = text("ARCHITECTURE.md").split(f"| {begin}")[1].split("\n\n")[0].splitlines()
    return [f"| {begin}{lines[0]}", *lines[2:]]


def _action(method: Callable[..., None]) -> str:
    return "" if method.__name__ == "_never" else method.__name__

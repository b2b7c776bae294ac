"""Write what documents say of the code: ``python -m tests.documents``, or ``make documents``.

A block in a document begins with ``<!-- made NAME -->``, and ends with the same after a slash;
`MADE` says what is in it. The figures of reports are `loadtest.figures`' own. A setting is
described by the text below its field; ``(default: ...)`` at the beginning of this stands for a
default that follows from other settings.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from gateway import errors
from gateway.admin.pages.widgets import lasting
from gateway.cli import COMMANDS
from gateway.config import late
from gateway.config.notify import Notify
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES, properties
from gateway.config.urls import TLS
from gateway.metric_table import METRICS, PARENT
from gateway.model import Model
from gateway.relay.delivery import STAGES, Stage
from gateway.sources import BLOCKS, SCHEMES, find
from gateway.sources.block import Block
from gateway.sources.proofs import TOKENS
from loadtest import figures

ROOT = Path(__file__).parents[1]
#: The settings that are tables, which have sections of their own.
_TABLES = ("routes", "sources", "tls", "notify")
_DEFAULT = re.compile(r"\(default: (.*?)\) ")
_block = re.compile(r"<!-- made (\w+) -->\n.*?<!-- /made \1 -->", re.DOTALL)


def written() -> dict[Path, str]:
    """Return each document, and what it has to be."""
    found = figures.written()
    for path in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/*.md"))]:
        found[path] = fill(found.get(path) or path.read_text("utf-8"))
    # Those that anybody can name, without the packages that are installed here.
    for path, words in (
        (ROOT / "README.md", " senders"),
        (ROOT / "CHANGES.md", " verify by a name"),
    ):
        text = found.get(path) or path.read_text("utf-8")
        found[path] = re.sub(rf"\b\d+(?={words}\b)", str(len(SCHEMES.own)), text)
    return found


def fill(document: str) -> str:
    """Return `document` with what follows from the code in its blocks."""

    def made(block: re.Match[str]) -> str:
        return f"<!-- made {block[1]} -->\n{table(*MADE[block[1]]())}<!-- /made {block[1]} -->"

    return _block.sub(made, document)


def table(*lines: Sequence[str]) -> str:
    return figures.markdown(lines, names=len(lines[0]))


# Settings -----------------------------------------------------------------------------------


def descriptions(model: type[Model]) -> dict[str, str]:
    """Return the text below each field of `model`, its own fields first."""
    found: dict[str, str] = {}
    for cls in model.__mro__[: model.__mro__.index(Model)]:
        (tree,) = ast.parse(dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                name = ast.unparse(field.target)
                found.setdefault(name, " ".join(ast.literal_eval(text.value).split()))
    return found


def settings(model: type[Model], head: str) -> Iterator[list[str]]:
    """Yield the rows of the table of a model's fields; raises ValueError where one has no text."""
    yield [head, "default", "meaning"]
    texts = descriptions(model)
    if missing := model.model_fields.keys() - texts.keys() - {*_TABLES}:
        raise ValueError(f"{model.__name__}: write a text below the field {', '.join(missing)}")
    for name, text in texts.items():
        given = _DEFAULT.match(text)
        default = given[1] if given else default_of(model.model_fields[name])
        yield [f"`{name}`", default, text[given.end() :] if given else text]


def default_of(field: FieldInfo) -> str:
    """Return the default of a setting, as the documents say it."""
    if field.is_required():
        return "needed"
    values = field.default if isinstance(field.default, list | tuple) else [field.default]
    return ", ".join(map(_said, values)) or "none"


def _said(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return f"`{value}`" if value not in (None, "", {}) else "none"


# Other tables -------------------------------------------------------------------------------


def strategies() -> Iterator[list[str]]:
    yield ["strategy", "publishes with, and gets the result by", "worker"]
    for name in STRATEGIES.own:
        info = properties(name)
        replies = "`appserver.setup(app)`, or any with `rpc://`"
        worker = replies if info.replies else "any, with a Redis result backend"
        yield [f"`{name}`", info.summary.rstrip("."), worker]


def commands() -> Iterator[list[str]]:
    yield ["command", "what it does"]
    for name, plugin in COMMANDS.own.items():
        yield [f"`gateway {name}`", plugin.summary()]


def problems() -> Iterator[list[str]]:
    """Yield a row for each error that a request may be answered with."""
    yield ["status", "type", "when"]
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    # The root itself is what a bug is answered with, and `Unverified` what its reasons are.
    bases = (errors.RequestError, errors.Unverified)
    final = {
        (each.status, each.type): each
        for each in classes
        if issubclass(each, errors.RequestError)
        and (each in bases or not (each.__subclasses__() or issubclass(each, errors.Unverified)))
    }
    for (status, kind), each in sorted(final.items()):
        yield [str(status), f"`{kind}`", " ".join(str(each.__doc__).split())]


def metrics() -> Iterator[list[str]]:
    yield ["metric", "type", "labels", "what it is"]
    for name, metric in {**PARENT, **METRICS}.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield [f"`{name}`", metric.type, labels, metric.about]


def signed(block: Block) -> str:
    """Say what a sender signs."""
    if block.algorithm in TOKENS:
        return "nothing: the secret is sent"
    words = {"body": "body", "url": "public URL", "method": "method", "id": "id", "time": "time"}
    said = {
        "time" if text in block.time else words.get(text.partition("|")[0], f"`{text}`"): None
        for text in block.signed_places
    }
    return ", ".join(said) or "only its key"


def senders() -> Iterator[list[str]]:
    yield ["sender", "scheme", "signed", "its signature", "identity", "waits; tries again"]
    for name in BLOCKS:
        source = find(name)
        block: Block = source.block  # type: ignore[attr-defined]
        places = ", ".join(f"`{text}`" for text in block.signature[:2])
        identity = ", ".join(f"`{text}`" for text in block.identity or block.id) or "none"
        said = signed(block) + (f"; {block.note}" if block.note else "")
        cells = [block.title, f"`{name}`", said, f"{places}: {block.algorithm}", identity]
        yield [*cells, block.waits or "not known"]


def late_answers() -> Iterator[list[str]]:
    head = ("for", "tries", "a text becomes", "of an object is sent", "sent twice")
    yield ["`late`", "sent to", *head]
    for name in late.senders():
        block = late.Late.model_validate(name)
        hosts = f", only at {', '.join(block.hosts)}" if block.url.startswith("{") else ""
        until = f"until `{block.until}`, at most " if block.until else ""
        yield [
            f"`{name}`",
            f"`{block.method} {block.url}`{hosts}",
            until + lasting(block.window),
            str(block.tries),
            f"`{json.dumps(block.text)}`",
            f"all, or what is at `{block.unwrap}`" if block.unwrap else "all",
            "perhaps: it replaces" if block.replaces else "never",
        ]


def stages() -> Iterator[list[str]]:
    """Yield, for each thing that a delivery waits for, the method that each event calls."""
    events = [each.name for each in fields(Stage)][1:]
    yield ["it waits for", *events]
    for stage in STAGES:
        names = [getattr(stage, event).__name__ for event in events]
        yield [stage.waits_for, *(f"`{name}`" if name != "_never" else "" for name in names)]


MADE: dict[str, Callable[[], Iterator[list[str]]]] = {
    "settings": lambda: settings(Config, "setting"),
    "routes": lambda: settings(Route, "key"),
    "tls": lambda: settings(TLS, "key"),
    "notify": lambda: settings(Notify, "key"),
    "strategies": strategies,
    "commands": commands,
    "errors": problems,
    "metrics": metrics,
    "stages": stages,
    "senders": senders,
    "late": late_answers,
}


def main() -> None:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

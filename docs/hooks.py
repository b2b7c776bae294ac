"""Make one site of the documents, as mkdocs.yml describes it.

Links in a document are those of the repository. Here they lead to the same text: README.md is the
first page, and any other file outside docs/ that a document names is shown on a page below source/.
"""

from __future__ import annotations

import argparse
import json
import re
from html import escape
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gateway.cli import COMMANDS, command_line
from loadtest import render
from loadtest.figures import REPORTS
from loadtest.report import Report

ROOT = Path(__file__).parents[1]
#: The documents beside docs/, and their places in the site.
BESIDE = {
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "CHANGES.md", "CONTRIBUTING.md", "SECURITY.md")},
}
LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")
#: The first line of an item of a list.
ITEM = re.compile(r"( *)((?:[-*]|\d+\.) +)\S")
LARGEST = 100_000  # bytes of a file that is shown


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that they have in the repository."""
    config.mdx_configs["toc"] = {"slugify": slug}
    return config


def slug(heading: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what mkdocs does not find in docs/."""
    for name, uri in BESIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    documents = [*BESIDE, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    files.append(File.generated(config, "commands.md", content=commands()))
    add_reports(files, config)
    for document in documents:
        if (ROOT / document).is_file():
            for link, _ in LINK.findall((ROOT / document).read_text("utf-8")):
                add(files, config, normpath(f"{dirname(document)}/{link}".lstrip("/")))
    return files


def add(files: Files, config: MkDocsConfig, name: str) -> None:
    """Add a page that shows the file or directory `name` of the repository, unless there is one."""
    path, uri = ROOT / name, place(name)
    if not path.exists() or files.get_file_from_path(uri) is not None:
        return
    if path.is_file():
        text = f"# {name}\n\n<pre><code>{escape(path.read_text('utf-8'))}</code></pre>\n"
    else:
        inside = sorted(path.iterdir())
        # Without what a build has left there.
        inside = [p for p in inside if p.name[0] not in "._" and p.stat().st_size < LARGEST]
        text = "\n".join([f"# {name}\n", *(f"- [{p.name}]({p.name})" for p in inside)])
        for each in inside:
            add(files, config, f"{name}/{each.name}")
    files.append(File.generated(config, uri, content=text))


def place(name: str) -> str:
    """Return where the file or directory `name` of the repository is in the site."""
    if name in BESIDE:
        return BESIDE[name]
    documents = name.startswith("docs/")
    uri = name.removeprefix("docs/") if documents else f"source/{name}"
    if (ROOT / name).is_dir():
        return f"{uri}/index.md"
    return uri if documents else f"{uri}.md"


def origin(uri: str) -> str:
    """Return the directory of the repository to which the links of a page are relative."""
    if uri in BESIDE.values():
        return ""
    if uri.startswith("source/"):
        return dirname(uri).removeprefix("source/")
    return dirname(f"docs/{uri}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the site's pages, and write lists as Python's Markdown reads them."""
    uri = page.file.src_uri

    def lead(found: re.Match[str]) -> str:
        name = normpath(f"{origin(uri)}/{found[1]}".lstrip("/"))
        return f"]({relpath(place(name), dirname(uri) or '.')}{found[2] or ''})"

    shown = uri.startswith("source/") and not uri.endswith("/index.md")
    return markdown if shown else lists(LINK.sub(lead, markdown))


def lists(markdown: str) -> str:
    """Write lists and code as Python's Markdown reads them, which is stricter than CommonMark.

    What belongs to an item is indented by four spaces, code in it by eight and without fences. An
    empty line comes before a list, and before an item after one with paragraphs.
    """
    lines: list[str] = []
    width, loose, fenced = 0, False, False
    for line in markdown.splitlines():
        text = line.lstrip()
        if text.startswith("```"):
            fenced = not fenced
            line = "" if width else text.split(" ")[0]
        elif fenced:
            line = f"{' ' * 8}{line[width:]}" if width else line
        elif not line:
            loose = True
        elif (item := ITEM.match(line)) and not item[1]:
            if lines and lines[-1] and (loose or not width):
                lines.append("")
            width, loose = len(item[2]), loose and bool(width)
        elif width and line.startswith(" " * width):
            line = " " * (4 - width) + line
        elif loose:
            width = 0
        lines.append(line)
    return "\n".join(lines)


def commands() -> str:
    """Return the options of all commands, as `--help` prints them."""
    parser = command_line(COMMANDS.own)
    (each,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parts = ["# Commands", f"```text\n{parser.format_help()}```"]
    for name, command in each.choices.items():
        parts += [f"## gateway {name}", f"```text\n{command.format_help()}```"]
    return "\n\n".join(parts)


def add_reports(files: Files, config: MkDocsConfig) -> None:
    """Draw each report of the load test, and list them."""
    lines = ["# Reports", "", "What [performance.md](../performance.md) is about, in full.", ""]
    for file in sorted(REPORTS.glob("*.json")):
        figures = json.loads(file.read_text("utf-8"))
        if "shown" in figures:  # the others are of faults and of the simulator
            report, name = Report.read(figures), f"{file.stem}.html"
            files.append(File.generated(config, f"reports/{name}", content=render.draw(report)))
            lines.append(f"- [{report.experiment}]({name})")
    files.append(File.generated(config, "reports/index.md", content="\n".join(lines)))

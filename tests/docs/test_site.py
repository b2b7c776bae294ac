"""The documents build as a site that says what they say, and needs no other server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from gateway.cli import COMMANDS
from loadtest import figures, render
from tests.docs.test_documents import ROOT, text

pytest.importorskip("mkdocs", reason="install celery-gateway[docs]")
#: Elements whose number shows whether lists, code and tables were read as such.
ELEMENTS = ("h1", "h2", "h3", "h4", "li", "ol", "pre", "table", "tr", "ul", "img", "blockquote")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; with --strict a link or an anchor that leads nowhere is an error."""
    target = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING -" not in done.stderr
    return target


def documents() -> dict[str, str]:
    """Return the place of each document in the site, without `.html`."""
    beside = {name: name for name in re.findall(r'"([A-Z]+\.md)"', text("docs/hooks.py"))}
    inside = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    places = {**beside, **{str(path): str(path.relative_to("docs")) for path in inside}}
    places["README.md"] = "index.md"
    return {name: place.removesuffix(".md") for name, place in places.items()}


def elements(html: str) -> Counter[str]:
    return Counter(name for name in re.findall(r"<(\w+)", html) if name in ELEMENTS)


def test_each_document_is_read_there_as_in_the_repository(site):
    for name, place in documents().items():
        page = (site / f"{place}.html").read_text("utf-8")
        content = page.split("<article")[1].split("</article>")[0]
        original = MarkdownIt().enable("table").render(text(name))
        assert elements(content) == elements(original), name


def test_it_loads_nothing_from_other_servers(site):
    loads = r'<(?:script|img|link)\b[^>]*\b(?:src|href)="([^"]*)'
    for page in site.rglob("*.html"):
        assert [at for at in re.findall(loads, page.read_text("utf-8")) if "//" in at] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text("utf-8")), style


def test_each_command_has_its_options_there(site):
    page = (site / "commands.html").read_text("utf-8")
    for command in COMMANDS:
        assert f">gateway {command}</h2>" in page and f"usage: gateway {command} " in page


def test_each_report_is_drawn_from_its_figures(site):
    listed = re.findall(
        r'href="([\w-]+)\.html">\1<', (site / "reports/index.html").read_text("utf-8")
    )
    named = re.findall(r"\(reports/([\w-]+)\.json\)", text("docs/performance.md"))
    assert set(named) <= set(listed)
    for name in listed:
        report = render.read(figures.REPORTS / f"{name}.json")
        page = unescape((site / f"reports/{name}.html").read_text("utf-8"))
        judged = report.target_lines() if report.targets else []
        for cell in (cell for line in judged + report.lines() for cell in line):
            assert cell.partition(" (")[0] in page, name
        for said in (report.conclusion, report.advice, *report.problems(), report.disturbance()):
            assert said in page, name


def test_each_document_has_its_place_in_the_list():
    listed = re.findall(r": ([\w-]+)\.md$", text("mkdocs.yml"), re.M)
    places = {place for place in documents().values() if not place.startswith("decisions/")}
    assert set(listed) - {"commands"} == places

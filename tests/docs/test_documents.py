"""What the documents list is what the code has."""

from __future__ import annotations

import configparser
import re
from difflib import unified_diff
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from gateway import __version__
from gateway.answer import ALLOWED_HEADERS
from gateway.config.late import Fetch, Late
from gateway.config.strategies import STRATEGIES
from gateway.config.urls import TLS
from gateway.delivery import Delivery
from gateway.sources.base import Options
from loadtest import figures
from tests import documents

ROOT = Path(__file__).parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def first_cells(document: str, heading: str) -> set[str]:
    """Return the code spans in the first column of the table under `heading`."""
    part = document.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_what_is_made_from_the_code_is_up_to_date():
    differences, blocks = [], []
    for path, made in documents.written().items():
        lines = (path.read_text("utf-8").splitlines(), made.splitlines())
        differences += unified_diff(*lines, path.name, "made from the code", n=0, lineterm="")
        blocks += re.findall("<!-- made (.+) -->", made)
    assert not differences, "run `make documents`:\n" + "\n".join(differences)
    # Every block that can be made is in one document.
    assert sorted(blocks) == sorted(documents.MADE)


def test_a_setting_without_a_text_is_named():
    class Undescribed(TLS):
        speed: int = 1

    with pytest.raises(ValueError, match="Undescribed: write a text below the field speed"):
        list(documents.settings(Undescribed, "key"))


def test_every_option_of_a_source_is_documented():
    assert first_cells(text("docs/configuration.md"), "Sources") == set(Options.model_fields)


def test_every_header_that_a_task_may_set_is_documented():
    part = text("docs/errors.md").split("## Headers that a task may set\n")[1].partition(". Any")[0]
    assert {name.lower() for name in re.findall(r"`([A-Za-z-]+)`", part)} == ALLOWED_HEADERS


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/appserver.md", "docs/scaling.md",
        "docs/start.md",
    ],
)  # fmt: skip
def test_files_that_a_document_names_exist(name):
    document = text(name)
    named = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", document)
    links = [(ROOT / name).parent / link for link in named]
    spans = re.findall(r"`((?:gateway|appserver|tests|docs|deploy|loadtest)/[\w./-]*)`", document)
    assert links + spans
    missing = [str(path) for path in links + spans if not (ROOT / path).exists()]
    assert not missing, f"{name} names files that are not there: {', '.join(missing)}"


def test_the_picture_of_the_strategies_shows_the_committed_report():
    # Not compared as it was drawn, which depends on the version of what draws it.
    drawn = ElementTree.parse(figures.PICTURE)
    texts = [each.text for each in drawn.iter() if each.text]
    assert set(figures.picture_figures()) <= set(texts)
    assert {name for name in STRATEGIES if name in texts} == figures.picture_strategies()
    assert f"]({figures.PICTURE.relative_to(ROOT / 'docs')})\n" in text("docs/performance.md")


def test_performance_says_how_many_figures_are_missed():
    document = text("docs/performance.md")
    rows = re.findall(r"^\|.*\| missed \|$", document, re.M)
    assert re.findall(r"^(\d+) of the figures above are missed\.$", document, re.M) == [
        str(len(rows))
    ]


def test_every_key_that_a_task_gets_is_documented():
    delivery = Delivery("", "", {}, {}, "", {}, b"", "", 0.0)
    keys = {*delivery.table(store=False), "replay", "edited_from"}  # the latter only of replays
    assert first_cells(text("docs/appserver.md"), "What a task gets") == keys


def test_the_package_is_installed_from_a_checkout_or_a_wheel_and_not_by_its_name():
    """No index has it, and somebody else could take its name there."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.*")]
    files += [*ROOT.glob("gateway/**/*.py"), *ROOT.glob("appserver/*.py")]
    texts = "\n".join(file.read_text("utf-8") for file in files)
    commands = re.findall(r"pip install [^`#\n]*", texts)
    assert [command for command in commands if re.search(r" '?celery-gateway", command)] == []
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(",".join(re.findall(r"\[([\w,]+)]'", "".join(commands))).split(","))
    assert {"serve", "dev"} <= extras <= set(setup["options.extras_require"])


def test_the_upgrade_in_turn_is_that_of_the_shipped_files():
    upgrade = text("docs/deploy.md").split("\n## Upgrade\n")[1].split("\n## ")[0]
    unit, nginx = text("deploy/systemd/gateway@.service"), text("deploy/nginx.conf")
    (ports,) = re.findall(r"^    for port in ([\d ]+); do$", upgrade, re.M)
    assert len(ports.split()) == 2
    assert all(f"server 127.0.0.1:{port} " in nginx for port in ports.split())
    assert "systemctl restart gateway@$port\n" in upgrade
    assert "--port %i --admin-port 1%i\n" in unit and "127.0.0.1:1$port/readyz" in upgrade
    assert "ExecStart=/opt/gateway/bin/" in unit and "/opt/gateway/bin/pip" in upgrade


def test_every_key_of_a_block_of_late_answers_is_documented():
    section = text("docs/late.md").partition("## A block")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {*Late.model_fields}
    for name in Fetch.model_fields:
        assert f"`{name}`" in section


def test_manifests_and_changes_name_this_version():
    chart = yaml.safe_load(text("deploy/helm/celery-gateway/Chart.yaml"))
    assert chart["version"] == chart["appVersion"] == __version__
    assert text("CHANGES.md").split("\n## ")[1].startswith(__version__)


def test_documents_and_workflows_use_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):.*##", text("Makefile"), re.M))
    for name in ("README.md", "docs/start.md"):
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text(name), re.M)) <= targets, name
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = path.read_text()
        assert set(re.findall(r"\bmake ([a-z-]+)", workflow)) <= targets, path.name
        for job in yaml.safe_load(workflow)["jobs"].values():
            assert job["timeout-minutes"]
    assert (ROOT / ".ci/run").exists()

"""What a release names more than once is the same everywhere."""

from __future__ import annotations

import re

import yaml

from gateway import __version__
from tests.docs.test_documents import ROOT


def test_manifests_and_changes_name_this_version():
    chart = yaml.safe_load((ROOT / "deploy/helm/celery-gateway/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert (ROOT / "CHANGES.md").read_text().split("\n## ")[1].startswith(__version__)


def test_workflows_run_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        text = path.read_text()
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets, path.name
        for job in yaml.safe_load(text)["jobs"].values():
            assert job["timeout-minutes"]
    assert (ROOT / ".ci/run").exists()

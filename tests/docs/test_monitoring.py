"""What documents and rules say of metrics and alerts is what there is."""

from __future__ import annotations

import re
import shutil
import subprocess

import yaml

from gateway.admin.exposition import PARENT
from gateway.metrics import GAUGES, HELP
from tests.docs.test_documents import ROOT, text

RULES = ROOT / "deploy" / "prometheus"
KINDS = {"gateway_request_seconds": "histogram", **dict.fromkeys((*GAUGES, *PARENT), "gauge")}


def rules() -> list[dict]:
    (group,) = yaml.safe_load((RULES / "rules.yaml").read_text())["groups"]
    return group["rules"]


def test_each_metric_is_described():
    found = re.findall(r"^\| `(\w+)` \| (\w+) \|.*\| (.+) \|$", text("docs/metrics.md"), re.M)
    expected = {**PARENT, **HELP}
    assert {(name, kind, about) for name, kind, about in found} == {
        (name, KINDS.get(name, "counter"), about) for name, about in expected.items()
    }


def test_alerts_use_metrics_that_there_are():
    known = {*PARENT, *HELP}
    for rule in rules():
        used = set(re.findall(r"\bgateway_\w+", rule["expr"]))
        assert used <= known and (used or "up{" in rule["expr"]), rule["alert"]


def test_rules_hold_by_their_own_tests_where_promtool_is_installed():
    if promtool := shutil.which("promtool"):
        for command in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
            subprocess.run([promtool, *command], cwd=RULES, check=True)


def test_each_alert_is_explained_and_tested():
    names = [rule["alert"] for rule in rules()]
    assert re.findall(r"^## (Gateway\w+)$", text("docs/alerts.md"), re.M) == names
    tested = (RULES / "tests.yaml").read_text()
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in tested
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")

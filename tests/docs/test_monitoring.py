"""What documents and rules say of metrics and alerts is what there is."""

from __future__ import annotations

import re
import shutil
import subprocess

import yaml

from gateway.metric_table import HISTOGRAM, METRICS, PARENT
from tests.alerts.prometheus import shortened
from tests.alerts.rows import ROWS
from tests.docs.test_documents import ROOT, text

RULES = ROOT / "deploy" / "prometheus"
KNOWN = {**PARENT, **METRICS}


def rules() -> list[dict]:
    (group,) = yaml.safe_load((RULES / "rules.yaml").read_text())["groups"]
    return group["rules"]


def series() -> dict[str, set[str]]:
    """Return the names of all series that there are, with their labels."""
    found = {}
    for name, metric in KNOWN.items():
        labels = {*metric.labels, "job", "instance", "namespace", "pod"}
        if metric.type == HISTOGRAM:
            found |= {f"{name}_{part}": labels for part in ("count", "sum")}
            found[f"{name}_bucket"] = {*labels, "le"}
        else:
            found[name] = labels
    return found


def used(query: str) -> dict[str, set[str]]:
    """Return the names of the series that a query reads, with the labels it chooses them by."""
    found = re.findall(r"\b((?:gateway|http|messaging)_\w+)(?:\{(.*?)\})?", query)
    labelled = {name: set(re.findall(r"(\w+)[=!]", labels)) for name, labels in found}
    return {name: labels for name, labels in labelled.items() if name != "http_route"}


def test_alerts_use_metrics_that_there_are():
    known = series()
    for rule in rules():
        found = used(rule["expr"])
        assert found or "up{" in rule["expr"], rule["alert"]
        for name, labels in found.items():
            assert labels <= known[name], rule["alert"]
        grouped = re.findall(r"by \((.+?)\)", rule["expr"])
        wanted = {label.strip() for labels in grouped for label in labels.split(",")}
        assert all(wanted <= known[name] for name in found), rule["alert"]


def test_the_scaling_uses_metrics_that_there_are():
    chart = text("deploy/helm/celery-gateway/templates/gateway.yaml")
    found = used(re.search(r"query: (.+)", chart)[1]).keys()
    assert found and found <= series().keys()


def test_rules_hold_by_their_own_tests_where_promtool_is_installed():
    if promtool := shutil.which("promtool"):
        for command in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
            subprocess.run([promtool, *command], cwd=RULES, check=True)


def test_each_alert_has_a_fault_that_fires_it():
    assert {name for row in ROWS for name in row.fires} == {rule["alert"] for rule in rules()}
    assert {name for row in ROWS for name in row.may} <= {rule["alert"] for rule in rules()}


def test_shortened_rules_are_the_rules_with_other_durations():
    text = (RULES / "rules.yaml").read_text()
    assert shortened(text, 1) != text
    assert shortened("for: 1m\n[2h]", 60) == "for: 1000ms\n[120000ms]"
    durations = r"(?:for: |\[)(\w+)"
    assert all(each.endswith("ms") for each in re.findall(durations, shortened(text, 12)))
    assert re.sub(durations, "", shortened(text, 12)) == re.sub(durations, "", text)


def test_each_alert_is_explained_and_tested():
    names = [rule["alert"] for rule in rules()]
    assert re.findall(r"^## (Gateway\w+)$", text("docs/alerts.md"), re.M) == names
    tested = (RULES / "tests.yaml").read_text()
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in tested
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")

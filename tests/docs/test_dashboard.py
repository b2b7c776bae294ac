"""Grafana's dashboard asks for metrics that there are, as Prometheus understands it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.docs.test_documents import text

DASHBOARD = json.loads(text("deploy/grafana/gateway.json"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
VARIABLES = {each["name"]: each.get("query") for each in DASHBOARD["templating"]["list"]}


@pytest.fixture(scope="module")
def kinds() -> dict[str, tuple[str, set[str]]]:
    """Return each metric's kind and labels, as docs/metrics.md lists them."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", text("docs/metrics.md"), re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_series_is_one_of_the_documented_metrics(expression, kinds):
    names = re.findall(r"(\w+)\{", expression)
    assert names
    for name in names:
        suffix = re.search(r"_(bucket|count|sum)$", name)
        plain = name.removesuffix(suffix[0]) if suffix and name not in kinds else name
        kind, labels = kinds[plain]
        assert (kind == "histogram") == (plain != name), name
        selected = re.findall(r"(\w+)(?:=|!=|=~|!~)\"", expression.split(name)[1].split("}")[0])
        grouped = re.findall(r"by \(([\w, ]+)\)", expression)
        known = {*labels, "job", "instance", "le"}
        assert {*selected, *re.findall(r"\w+", " ".join(grouped))} <= known
        # A counter is not shown as it is.
        assert kind == "gauge" or re.search(rf"(?:rate|increase)\({name}\{{", expression)


def test_variables_are_those_that_are_used():
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used == VARIABLES.keys()


def test_panels_do_not_overlap():
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    fields = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(fields) == len(set(fields)) and max(x for x, _ in fields) < 24


def test_expressions_are_valid_where_promtool_is_installed(tmp_path):
    if promtool := shutil.which("promtool"):
        expressions = [each.values[0].replace("$__rate_interval", "5m") for each in EXPRESSIONS]
        rules = [{"record": f"panel:{n}", "expr": each} for n, each in enumerate(expressions)]
        file = tmp_path / "rules.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

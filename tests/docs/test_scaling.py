"""docs/scaling.md: its options, its example and its figures are the command's and the reports'."""

from __future__ import annotations

import argparse
import json
import re
import shlex

import pytest

from gateway.cli import capacity, main
from gateway.cli.sizing import costs, limits, model, reports
from gateway.cli.sizing.load import Load
from loadtest.figures import COSTED, REPORTS
from loadtest.summary import summarize
from tests.docs.test_documents import ROOT, text

DOCUMENT = text("docs/scaling.md")


def test_every_option_is_documented():
    parser = argparse.ArgumentParser(add_help=False)
    capacity.options(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    table = DOCUMENT.split("| option | default |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == options


def test_the_example_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]):
    (command, shown) = re.findall(r"```\n\$ gateway (.*?)\n(.*?)\n```", DOCUMENT, re.S)[0]
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == f"{shown}\n"


def test_the_example_by_hand_is_right():
    load = Load(2_000, 0.2, strategy="pika", pool="threads", identified=0)
    found = model.plan(load, costs.shipped())
    assert 400 < found.in_flight < 405
    assert pytest.approx(571, abs=1) == 2_000 * 0.2 / 0.7
    assert found.workers.count == 9
    assert 8 * 64 < 571 < 9 * 64


def test_the_costs_over_the_rate_are_those_of_the_report():
    report = json.loads((REPORTS / "growth.json").read_text("utf-8"))
    lines: dict[str, list[str]] = {}
    for each in summarize(report["rows"]):
        rate = each.case.removesuffix("/s")
        if rate != each.case and each.strategy in ("pika", "redis"):
            us = each.median("cpu_us_per_request", "gateway")
            use = us * float(rate.replace(",", "")) / 1e6
            lines.setdefault(rate, []).append(f"{us:.0f} | {use:.0%}".replace("%", " %"))
    shown = DOCUMENT.split("<!-- costs per process -->")[1].split("<!-- /costs")[0]
    assert re.findall(r"^\| ([\d,]+ \|.*) \|$", shown, re.M) == [
        f"{rate} | {' | '.join(cells)}" for rate, cells in lines.items()
    ]


def test_the_reports_of_the_costs_are_named():
    for name in COSTED:
        assert f"`{name}`" in DOCUMENT.split("## Costs")[1].split("\n\n")[1]
    for name in reports.EXPERIMENTS:
        assert f"`{name}`" in DOCUMENT or f"run.sh {name}" in DOCUMENT


def test_the_numbers_of_the_model_are_the_code_s():
    for number in (f"{limits.PORTS:,}", f"{model.STORED} bytes", f"{model.CLAIM} bytes"):
        assert number in DOCUMENT
    assert f"{model.WATERMARK} × the nodes' memory" in DOCUMENT
    assert f"`gevent`: {model.GREENLETS + 1}" in DOCUMENT
    assert f"{model.KEPT} × result" in DOCUMENT


def test_files_that_it_names_exist():
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", DOCUMENT)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

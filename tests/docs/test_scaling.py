"""docs/scaling.md: its options, its example and its figures are the command's and the reports'."""

from __future__ import annotations

import argparse
import re

import pytest

from gateway.cli.commands import capacity
from gateway.cli.commands.capacity import Load
from gateway.config.strategies import properties
from loadtest import figures
from loadtest.costs import EXPERIMENTS
from loadtest.figures import COSTED
from tests.docs.test_documents import text

DOCUMENT = text("docs/scaling.md")


def test_every_option_is_documented():
    parser = argparse.ArgumentParser(add_help=False)
    capacity.options(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    table = DOCUMENT.split("| option | default |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == options


def test_figures_that_follow_from_the_costs_are_written_again():
    # Whether they are those of the committed reports, test_reports.py sees.
    cell = DOCUMENT.split("| 50 | ")[1].split(" | ")[0]
    in_flight = re.findall(r"^in flight: .*$", DOCUMENT, re.M)
    assert len(in_flight) == 1
    other = DOCUMENT.replace(f"| 50 | {cell} |", "| 50 | 1 |").replace(in_flight[0], "in flight: 1")
    assert other != DOCUMENT
    assert figures.fill(other) == figures.fill(DOCUMENT)


def test_the_example_by_hand_is_right():
    load = Load(rate=2_000, task_time=0.2, strategy="pika", pool="threads", identified=0)
    found = capacity.Plan(load, capacity.read(capacity.SHIPPED))
    assert 400 < found.in_flight < 405
    assert pytest.approx(571, abs=1) == 2_000 * 0.2 / 0.7
    assert found.workers.count == 9
    assert 8 * 64 < 571 < 9 * 64


def test_the_reports_of_the_costs_are_named():
    for name in COSTED:
        assert f"`{name}`" in DOCUMENT.split("## Costs")[1].split("\n\n")[1]
    for name in EXPERIMENTS:
        assert f"`{name}`" in DOCUMENT or f"run.sh {name}" in DOCUMENT


def test_the_numbers_of_the_model_are_the_code_s():
    for number in (f"{capacity.PORTS:,}", f"{capacity.STORED} bytes", f"{capacity.CLAIM} bytes"):
        assert number in DOCUMENT
    assert f"{capacity.WATERMARK} × the nodes' memory" in DOCUMENT
    assert f"`gevent`: {properties('gevent').publishing + 1}" in DOCUMENT
    assert f"{capacity.KEPT} × result" in DOCUMENT

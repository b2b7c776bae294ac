"""`gateway dev` takes every block of a configuration in the documents, or says what to type."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from gateway.cli.commands import dev
from gateway.cli.local import plan
from gateway.errors import ConfigError
from tests.docs.test_documents import ROOT, text
from tests.docs.test_sources_doc import write

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name in DOCUMENTS
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", text(name), re.S))
]


@pytest.fixture
def given(tmp_path: Path):
    """Write a block, with its files, to a file; return what `gateway dev` is given."""
    file = tmp_path / "my gateway.toml"
    return lambda block: (["--config", str(file)], write(block, file))


def parsed(words: list[str]) -> Namespace:
    parser = ArgumentParser()
    dev.options(parser)
    return parser.parse_args(words)


def needs_amqp(block: str) -> bool:
    keys = "tries|prefer|.*also|revoke|queue_pattern|priority|exchange"
    return bool(re.search(rf'^({keys}|answer = "(wait-then-)?accept")', block, re.M))


def test_there_are_blocks():
    assert len(BLOCKS) > 20
    assert {needs_amqp(block.values[0]) for block in BLOCKS} == {True, False}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("installed", [True, False])
def test_dev_takes_it_or_says_what_to_type(block, installed, given, tmp_path, monkeypatch):
    words, env = given(block)
    monkeypatch.setattr(plan, "_rabbitmq_is_installed", lambda: installed)
    if installed or not needs_amqp(block):
        made = plan.make(parsed(words), env, tmp_path)
        assert made.broker == ("rabbitmq" if needs_amqp(block) else "embedded")
        assert bool(made.why) == needs_amqp(block)
        assert made.config.routes
        return

    with pytest.raises(ConfigError) as error:
        plan.make(parsed(words), env, tmp_path)

    told = error.value.problems[-1]
    assert "apt install rabbitmq-server" in told
    # What it says works as it stands.
    private, elsewhere = re.findall(r"--broker [a-z]+(?:://[A-Z:@]+//)?", told)
    assert plan.make(parsed([*words, *private.split()]), env, tmp_path).broker == "rabbitmq"
    elsewhere = elsewhere.replace("USER:PASSWORD@HOST", "127.0.0.1")
    assert plan.make(parsed([*words, *elsewhere.split()]), env, tmp_path).config.amqp


@pytest.mark.parametrize("url", ["embedded", "redis://127.0.0.1:7"])
def test_a_broker_that_was_asked_for_is_not_replaced(url, given, tmp_path):
    words, env = given('[[routes]]\npath = "/"\nanswer = "accept"\n')
    with pytest.raises(ConfigError) as error:
        plan.make(parsed([*words, "--broker", url]), env, tmp_path)
    problem, remedy = error.value.problems
    assert "routes[0].answer (path /): only an AMQP broker confirms" in problem
    assert "type the same command with --broker rabbitmq" in remedy


def test_a_strategy_that_needs_amqp_gets_it(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_rabbitmq_is_installed", lambda: True)
    made = plan.make(parsed(["--strategy", "pika"]), {}, tmp_path)
    assert (made.broker, made.demo) == ("rabbitmq", True)
    assert "strategy" in made.why


def test_what_else_is_wrong_is_told_alone(given, tmp_path):
    words, env = given('[[routes]]\npath = "/"\nanswer = "accept"\ndeadline = true\n')
    with pytest.raises(ConfigError) as error:
        plan.make(parsed(words), env, tmp_path)
    (problem,) = error.value.problems
    assert problem.endswith("routes[0].deadline (path /): has to be a number, such as 4.5")


def test_the_files_own_servers_are_not_used(given, tmp_path):
    staging = "staging.example.com"
    words, env = given(
        f'broker_url = "amqp://{staging}"\nresult_backend = "redis://{staging}"\n'
        f'state_url = "redis://{staging}"\n[[routes]]\npath = "/"\n'
    )
    config = plan.make(parsed(words), env, tmp_path).config
    assert staging not in f"{config.brokers} {config.results} {config.state}"

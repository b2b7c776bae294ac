"""Tasks that put others in their place have one answer with every strategy."""

from __future__ import annotations

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.config import route
from tests.support.requests import post_each

FAILING = ("odd", "by_failing_group", "by_failing_chord")
TASKS = ("by_task", "by_chain", "by_group", "by_chord", *FAILING)
ROUTES = "".join(route(f"/{name}", f"replacing.{name}", deadline=10) for name in TASKS)
WORKER = {"app": "tests.integration.tasks"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_task_in_its_place_answers(start_gateway, worker, strategy):
    gateway = start_gateway(ROUTES, "--strategy", strategy)

    answers = post_each([(f"{gateway.url}/{name}", b"x") for name in TASKS])

    assert [answer.code for answer in answers] == [200] * 4 + [502] * 3
    assert b"could not encode" in answers[4].body
    assert all(b"ChordError" in answer.body for answer in answers[5:])
    assert [answer.body for answer in answers[:4]] == [b"x", b"x", b'["x","x"]', b"xx"]

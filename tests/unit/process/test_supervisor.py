"""The parent: what it does where several signals come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import NoReturn

import pytest

from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process.health import alive
from gateway.process.service_manager import ServiceManager
from gateway.process.supervisor import Supervisor


@pytest.fixture
def loaded() -> list[str]:
    return []


@pytest.fixture
def supervisor(loaded: list[str]) -> Supervisor:
    """It notes in `loaded` each time that it loads its configuration, which is broken."""

    def load() -> NoReturn:
        loaded.append("again")
        raise ConfigError(["a broken file"])

    return Supervisor(Config(), [], load, ServiceManager(""))


async def test_what_is_asked_for_during_a_reload_is_one_more(supervisor, loaded):
    async with supervisor._reloading:  # as by one that is under way
        asked = [asyncio.create_task(supervisor._reload()) for _ in range(5)]
        await asyncio.sleep(0)
        assert loaded == []
    await asyncio.gather(*asked)
    assert loaded == ["again"]
    await supervisor._reload()
    assert loaded == ["again", "again"]


async def test_what_is_told_to_stop_does_not_reload(supervisor, loaded):
    supervisor._stop()
    await supervisor._reload()
    assert loaded == []


SERVES, STARTS, GOES = ((False, False), (True, False), (False, True))  # starting, retired


@pytest.mark.parametrize(
    ("silent", "answering", "expected"),
    [
        ([], [SERVES], True),
        ([SERVES], [SERVES], False),
        ([STARTS], [SERVES], True),
        ([GOES], [SERVES], True),  # it has a limited time, and the new ones serve
        ([GOES], [], False),
        ([SERVES], [], False),
    ],
)
def test_a_child_that_comes_or_goes_may_be_silent(silent, answering, expected):
    children = [(SimpleNamespace(starting=a, retired=b), None) for a, b in silent]
    children += [(SimpleNamespace(starting=a, retired=b), {}) for a, b in answering]
    assert alive(children) is expected

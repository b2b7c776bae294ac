"""What gateways tell each other: by what they differ, and nothing secret."""

from __future__ import annotations

import logging

import pytest

from gateway.config.settings import Config
from gateway.history.gateways import WRONG, Line, about, differences, read

SECRETS = {
    "secret_key": "of these tests only",
    "admin_token": "another of these tests",
    "broker_url": "amqp://user:hidden@one//",
    "result_backend": "redis://:hidden@two/0",
    "sources": {"us": {"scheme": "standard", "secrets": ["whsec_ZmF1bHRzZmF1bHRzZmF1bHRz"]}},
}


def line(name: str = "a:1", **settings: object) -> Line:
    return about(Config(**{**SECRETS, **settings}), name)


def kinds(own: Line, other: Line) -> dict[str, str]:
    return {each.kind: each.text for each in differences(own, [own, other])}


def test_a_line_has_no_secret_and_comes_back_as_it_was():
    own = line(routes=[{"path": "/a", "source": "us"}])
    text = own.model_dump_json(exclude={"silent"})
    for secret in ("hidden", "tests only", "of these tests", "whsec"):
        assert secret not in text
    assert len(own.secret_key) == 8 and line(secret_key=None).secret_key == ""
    assert own.settings["timeout"] == 10.0 and own.broker == ["one:5672//"]

    pairs = [b"a:1", b"100.25 " + text.encode(), b"b:1", b'107.5 {"name": "b:1", "x": 1}']
    now, lines = read([b"107.5", pairs])
    assert now == 107.5 and [each.silent for each in lines] == [7.25, 0.0]
    assert lines[0].model_copy(update={"silent": 0.0}) == own
    assert not lines[0].lost and lines[0].model_copy(update={"silent": 8.5}).lost


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"x", b"1 x", b"1 []", b'1 {"rate": 1}', b'x {"name": "b"}', b"1 " + b"[" * 100_000),
        *(b'nan {"name": "b"}', b'inf {"name": "b"}', b'-3600 {"name": "b"}'),
        *(b'1 {"name": "b", "rate": NaN}', b'1 {"name": "b", "started": 1e300}'),
    ],
)
def test_what_is_no_line_is_left_out(text, caplog):
    caplog.set_level(logging.DEBUG)
    assert read([b"1", [b"b", text]]) == (1.0, [])
    assert "no gateway's line" in caplog.messages[0].replace("not a", "no")


def test_each_difference_is_said_in_words():
    own = line(routes=[{"path": p} for p in ("/a", "/b", "/c")]).model_copy(update={"ahead": 0.2})

    def other(**changed: object) -> Line:
        return own.model_copy(update={"name": "b:1", **changed})

    assert kinds(own, own) == kinds(own, other()) == {}
    assert kinds(own, other(ahead=1.1)) == kinds(own, other(ahead=None)) == {}
    assert kinds(own, other(ahead=2.5)) == {"clock": "its clock is 2.3 s ahead"}
    assert kinds(own, other(ahead=-2.5)) == {"clock": "its clock is 2.7 s behind"}
    assert kinds(own, other(silent=80.0, ahead=9.0)) == {
        "lost": "it has not been heard of for 80 s"
    }
    assert kinds(own, other(silent=1_800.0)) == {"lost": "it has not been heard of for 30 min"}
    assert kinds(own, other(version="0.9")) == {"version": f"version {own.version} here, there 0.9"}
    assert list(kinds(own, other(secret_key="", prefix="x"))) == ["secret_key", "prefix"]
    assert list(kinds(own, other(broker=["y"]))) == ["broker"]

    changed = line("b:1", routes=[{"path": "/a"}, {"path": "/b", "deadline": 1}, {"path": "/d"}])
    assert kinds(own, changed) == {
        "routes": "routes differ: /c only here; /d only there; /b not the same"
    }
    many = other(routes=dict.fromkeys("123456789", "x"))
    assert "1, 2, 3 and others only there" in kinds(own, many)["routes"]
    timed = other(settings={**own.settings, "idle_timeout": 70.0, "loop": "uvloop"})
    assert kinds(own, timed) == {
        "settings": 'idle_timeout 75.0 here, there 70.0; loop "auto" here, there "uvloop"'
    }
    assert not {"version", "settings"} & set(WRONG)


def test_another_deployment_does_not_matter():
    own = line()
    assert kinds(own, line("b:1", state_prefix="other", routes=[{"path": "/other"}])) == {}
    assert list(kinds(own, line("b:1", routes=[{"path": "/other"}]))) == ["routes"]
    assert list(kinds(own, line("b:1", state_prefix="other"))) == ["prefix"]
    # Staging, in a virtual host of its own, has the routes of production.
    assert kinds(own, line("b:1", state_prefix="other", broker_url="amqp://h/staging")) == {}

"""From a path to its route."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.config.route import MAX_EVENTS
from gateway.config.settings import Config, Route
from gateway.delivery import Delivery, Request
from gateway.errors import BadRequest, NotFound
from gateway.relay.routes import Endpoint, Routes
from gateway.sources.base import Verified


def routes(*some: Route, **settings: object) -> Routes:
    return Routes(Config(routes=list(some), **settings))


def endpoint(*some: Route, **settings: object) -> Endpoint:
    return routes(*some, **settings).find("/")[0]


def request(method: str = "POST", **headers: str) -> Request:
    return Request(method, "/", "", headers, b"{}", "127.0.0.1", 0.0, 0.0)


def delivery(event: str = "", body: bytes = b"{}", **headers: str) -> Delivery:
    return Delivery("id", "/", {}, {}, "", headers, body, "127.0.0.1", 0.0, event=event)


ROUTES = routes(
    Route(path="/"), Route(path="/wechat/{account}"), Route(path="/wechat/main"),
    Route(path="/wechat/{account}/{event}.json"), Route(path="/a.b"), Route(path="/größe"),
    Route(path="/{anything}"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "route", "params"),
    [
        ("/", "/", {}),
        ("/wechat/main", "/wechat/main", {}),
        ("/wechat/other", "/wechat/{account}", {"account": "other"}),
        ("/wechat/a%20b", "/wechat/{account}", {"account": "a b"}),
        ("/wechat/%C3%BC", "/wechat/{account}", {"account": "ü"}),
        ("/w%65chat/m%61in", "/wechat/main", {}),
        ("/gr%C3%B6%C3%9Fe", "/größe", {}),
        ("/wechat/%2541", "/wechat/{account}", {"account": "%41"}),
        ("/wechat/a/b.c.json", "/wechat/{account}/{event}.json", {"account": "a", "event": "b.c"}),
        ("/axb", "/{anything}", {"anything": "axb"}),
        ("/wechat", "/{anything}", {"anything": "wechat"}),
    ],
)  # fmt: skip
def test_path_finds_its_route_and_parameters(path, route, params):
    found, got = ROUTES.find(path)
    assert (found.path, got) == (route, params)


@pytest.mark.parametrize(
    "path", ["", "//", "/wechat/", "/wechat/a/b", "/x/", "/a/../../etc", "/wechat%2Fa%2Fb", "*"]
)
def test_path_that_no_route_has(path):
    with pytest.raises(NotFound):
        ROUTES.find(path)


@pytest.mark.parametrize("path", ["/%00", "/a%0Ab", "/%7F", "/%ff", "/%c3", "/%ED%A0%80"])
def test_path_that_is_no_text_is_malformed(path):
    with pytest.raises(BadRequest):
        ROUTES.find(path)


def test_routes_with_parameters_are_tried_in_the_order_of_the_file():
    first, second = Route(path="/{a}/x"), Route(path="/y/{b}")
    assert routes(first, second).find("/y/x")[0].path == first.path
    assert routes(second, first).find("/y/x")[0].path == second.path


@given(st.text(st.characters(exclude_characters="%", exclude_categories=["Cc", "Cs"])))
def test_no_path_reaches_a_route_that_it_does_not_spell(text):
    hooks = routes(Route(path="/hook.{name}"))
    try:
        _, params = hooks.find(text)
    except NotFound:
        return
    assert text == f"/hook.{params['name']}" and "/" not in params["name"]


GITHUB = {"scheme": "github", "secrets": "s3cret", "pass_headers": ["Authorization"]}
SOURCES = {"forge": GITHUB}


def test_first_route_that_names_the_event_takes_it():
    some = [
        Route(path="/", source="forge", events=["push", "issues.*"], task="first"),
        Route(path="/", source="forge", events=["issues.opened", "star"], task="second"),
        Route(path="/", source="forge", task="rest"),
    ]
    found = endpoint(*some, sources=SOURCES)
    tasks = {
        event: found.route(delivery(event), event).task
        for event in ("push", "issues.opened", "star", "issues", "")
    }
    assert tasks == {
        "push": "first", "issues.opened": "first", "star": "second", "issues": "rest", "": "rest",
    }  # fmt: skip


def test_a_path_that_no_request_could_have_is_no_route_s():
    with pytest.raises(ValidationError, match="write what %.. stands for"):
        Route(path="/caf%C3%A9")
    assert routes(Route(path="/café")).find("/caf%C3%A9")[0].path == "/café"


def test_event_that_no_route_takes_has_no_target():
    found = endpoint(Route(path="/", source="forge", events=["push"]), sources=SOURCES)
    assert found.route(delivery("issues"), "issues") is None
    assert found.unrouted(Verified(b"{}")).status == 204


@pytest.mark.parametrize(
    ("event", "task"),
    [
        ("one, with a comma", "comma"),
        ("push,issues", "all"),  # although an earlier route takes one of them
        ("push,star", "first"),
        ("fork,star", "rest"),
        ("fork", None),
        (f"{'x' * 300},star", "rest"),
    ],
)
def test_a_batch_goes_to_the_first_route_that_takes_all_its_events_or_else_one(event, task):
    some = [
        Route(path="/", source="forge", events=["push"], task="first"),
        Route(path="/", source="forge", events=["push", "issues"], task="all"),
        Route(path="/", source="forge", events=["star"], task="rest"),
        Route(path="/", source="forge", events=["one, with a comma"], task="comma"),
    ]
    found = endpoint(*some, sources=SOURCES)
    route = found.route(delivery(event[:255]), event)
    assert (route and route.task) == task
    assert found.routed(event) == (task is not None)


def test_a_batch_of_more_events_than_can_be_looked_at_in_time_is_refused():
    found = endpoint(Route(path="/", source="forge", events=["push"]), sources=SOURCES)
    assert found.route(delivery(), "," * 100_000) is None
    with pytest.raises(BadRequest, match="over 1000 different events"):
        found.route(delivery(), ",".join(map(str, range(MAX_EVENTS + 1))))


WHEN = {"json:/id": "*", "header:x-env": "live"}


@pytest.mark.parametrize("when", [WHEN, dict(reversed(WHEN.items()))], ids=["json", "header"])
@pytest.mark.parametrize(
    "body", [b'{"id": "1', b"", b"\xff", b"id=1", b'{"id": NaN}', b"[" * 2_000]
)
def test_a_body_that_when_cannot_read_is_malformed_unless_a_route_takes_it(when, body):
    asked, rest = Route(path="/", when=when, task="asked"), Route(path="/", task="rest")
    alone, others = endpoint(asked), endpoint(asked, Route(path="/", when=when), rest)
    live = {"x-env": "live"}

    with pytest.raises(BadRequest):
        alone.route(delivery(body=body, **live), "")
    # What is no matter of the body decides without it.
    assert alone.route(delivery(body=body), "") is None
    assert alone.route(delivery(body=b'{"id": 1}', **live), "").task == "asked"
    assert alone.route(delivery(body=b"{}", **live), "") is None
    assert others.route(delivery(body=body, **live), "").task == "rest"


def test_a_body_that_cannot_be_read_is_read_once(monkeypatch):
    some = [Route(path="/", when={"json:/id": n, "json:/at": n}) for n in range(9)]
    read: list[bytes] = []

    def refuse(body: bytes) -> None:
        read.append(body)
        raise BadRequest

    monkeypatch.setattr("gateway.config.pointers.read_json_value", refuse)
    with pytest.raises(BadRequest):
        endpoint(*some).route(delivery(body=b"{"), "")
    assert read == [b"{"]


def test_task_gets_no_secrets_but_those_it_asks_for():
    found = endpoint(Route(path="/", source="forge"), sources=SOURCES)
    given = {
        "authorization": "Basic x", "cookie": "a=b", "proxy-authorization": "Basic y",
        "x-hub-signature-256": "sha256=0", "x-github-event": "push",
    }  # fmt: skip
    assert found.headers(request(**given)) == {"authorization": "Basic x", "x-github-event": "push"}
    assert endpoint(Route(path="/")).headers(request(**given)) == given

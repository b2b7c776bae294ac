"""From a path to its route."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Route
from gateway.errors import BadRequest, MethodNotAllowed, NotFound
from gateway.routes import Routes

ROUTES = Routes(
    [
        Route(path="/"),
        Route(path="/wechat/{account}"),
        Route(path="/wechat/main"),
        Route(path="/wechat/{account}/{event}.json"),
        Route(path="/a.b"),
        Route(path="/größe"),
        Route(path="/{anything}"),
    ]
)


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
        (
            "/wechat/a/b.c.json",
            "/wechat/{account}/{event}.json",
            {"account": "a", "event": "b.c"},
        ),
        ("/axb", "/{anything}", {"anything": "axb"}),
        ("/wechat", "/{anything}", {"anything": "wechat"}),
    ],
)
def test_path_finds_its_route_and_parameters(path, route, params):
    found, got = ROUTES.find("POST", path)
    assert (found.path, got) == (route, params)


@pytest.mark.parametrize(
    "path", ["", "//", "/wechat/", "/wechat/a/b", "/x/", "/a/../../etc", "/wechat%2Fa%2Fb", "*"]
)
def test_path_that_no_route_has(path):
    with pytest.raises(NotFound):
        ROUTES.find("POST", path)


@pytest.mark.parametrize("path", ["/%00", "/a%0Ab", "/%7F", "/%ff", "/%c3", "/%ED%A0%80"])
def test_path_that_is_no_text_is_malformed(path):
    with pytest.raises(BadRequest):
        ROUTES.find("POST", path)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "TRACE", "post", "X" * 1000])
def test_other_methods_are_told_what_is_allowed(method):
    with pytest.raises(MethodNotAllowed) as error:
        ROUTES.find(method, "/")
    assert error.value.headers == {"Allow": "POST"}
    assert len(error.value.detail) < 60
    with pytest.raises(NotFound):
        ROUTES.find(method, "/no/such")


def test_routes_with_parameters_are_tried_in_the_order_of_the_file():
    first, second = Route(path="/{a}/x"), Route(path="/y/{b}")
    assert Routes([first, second]).find("POST", "/y/x")[0] is first
    assert Routes([second, first]).find("POST", "/y/x")[0] is second


@given(st.text(st.characters(exclude_characters="%", exclude_categories=["Cc", "Cs"])))
def test_no_path_reaches_a_route_that_it_does_not_spell(text):
    routes = Routes([Route(path="/hook.{name}")])
    try:
        _, params = routes.find("POST", text)
    except NotFound:
        return
    assert text == f"/hook.{params['name']}" and "/" not in params["name"]

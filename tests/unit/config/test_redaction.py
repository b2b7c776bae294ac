"""What of a delivery's values is left in what is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Answer
from gateway.config import redaction
from gateway.config.redaction import HIDDEN, Redacted, Redaction, _lower
from gateway.config.route import Route
from gateway.delivery import Delivery, Request
from gateway.sources.reading import read_query


def delivery(body: bytes, query: str = "", **params: str) -> Delivery:
    headers = {"x-id": "national-17", "x-other": "of national-17"}
    return Delivery("id", "/", params, read_query(query), query, headers, body, "192.0.2.1", 0.0)


def kept(redact: list[str], body: bytes, args: list[str] | None = None, **more: Any) -> Any:
    """Return the call and the header `delivery` that are kept."""
    route = Route(path="/{a}", redact=redact, args=args)
    made = delivery(body, **{"a": "a value", **more})
    message = route.message(made, "task", store=False, persistent=False, expires=None)
    assert route.redaction is not None
    redacted = route.redaction.of(made).message(message)
    return json.loads(redacted.body)[0], redacted.delivery


@pytest.mark.parametrize(
    ("redact", "body", "left"),
    [
        (["json:/a"], '{"a": 1, "b": 2}', '{"a": "[redacted]", "b": 2}'),
        (["json:/a"], '{"a": "x1", "b": "x1", "c": "x12"}', {"a": HIDDEN, "b": HIDDEN, "c": "x12"}),
        (["json:/a"], '{"a": "long", "b": "a LONG one"}', {"a": HIDDEN, "b": f"a {HIDDEN} one"}),
        (["json:/a"], '{"a": {"b": [7, true]}, "c": 7, "d": true}',
         {"a": HIDDEN, "c": HIDDEN, "d": True}),
        (["json:/a/1"], '{"a": [1, 2, 3]}', {"a": [1, HIDDEN, 3]}),
        (["json:/a"], '{"a": 1, "a": 2}', {"a": HIDDEN}),
        (["json:/none"], '{"a": 1}', {"a": 1}),
        (["json:"], '{"a": 1}', HIDDEN),
        (["header:X-Id"], '{"a": "national-17"}', {"a": HIDDEN}),
    ],
)  # fmt: skip
def test_values_in_json(redact, body, left):
    (_, _, text), _ = kept(redact, body.encode())
    assert json.loads(text) == (json.loads(left) if isinstance(left, str) and left != HIDDEN
                                else left)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b"no JSON", "no JSON"),
        (b"of national-17", f"of {HIDDEN}"),
        (b"of n%61tional%2D17", HIDDEN),
        (b"\xff", HIDDEN),
        (b"", ""),
    ],
)
def test_other_bodies(body, left):
    (_, headers, text), _ = kept(["header:x-id"], body)
    assert text == left
    assert headers == {"x-id": HIDDEN, "x-other": f"of {HIDDEN}"}


def test_a_body_that_is_no_strict_json_is_hidden_as_a_whole():
    for text in (
        '{"card": "41110001", "x": NaN}', '\ufeff{"card": "41110001"}', "no JSON: 41110001",
        '{"card": "41110001", "x": 1e999}', '{"card": "41110001\t"}', '{"card": "41110001",}',
        '{"card": "41110001", "x": %s}' % ("1" * 4400), f'{{"card": "41110001", "x": {"[" * 9000}',
        "card=41110001",
    ):  # fmt: skip
        found, header = kept(["json:/card"], text.encode(), query="q=1")
        assert found == [{"q": "1"}, {"x-id": "national-17", "x-other": "of national-17"}, HIDDEN]
        assert header["query_string"] == "q=1"
        made = delivery(text.encode())
        assert Redaction(["json:/card"]).of(made).is_in(Answer(200, "", b"card 41110001"))
    assert kept(["json:/card"], b"")[0][2] == ""


def test_the_query_of_a_get_is_its_body():
    query = "name=erika%20m&card=41110001"
    for redact, body in (
        (["body"], query),
        (["json:/card"], query),
        (["body"], "a=%00&41110001=1"),
    ):
        found, header = kept(redact, body.encode(), query=body)
        assert found == [HIDDEN, {"x-id": "national-17", "x-other": "of national-17"}, HIDDEN]
        assert header["query_string"] == "%5Bredacted%5D"
        request = Request("GET", "/a", body, {}, body.encode(), "::1", 0.0, 0.0)
        hidden = Redaction(redact).of_request(request, {}).request(request, whole=True)
        assert (hidden.query_string, hidden.body) == ("%5Bredacted%5D", HIDDEN.encode())
    query = "ssn=123%2D45%2D6789&a=1"
    (_, _, text), header = kept(["query:ssn"], query.encode(), query=query)
    assert text == header["query_string"] == "ssn=%5Bredacted%5D&a=1"


def test_all_values_of_a_parameter_are_hidden():
    query = "token=first-secret&token=second-secret&a=first-secret"
    found, header = kept(["query:token"], query.encode(), query=query)
    assert "secret" not in json.dumps([found, header])
    assert header["query_string"].count("token=") == 2


def test_json_in_json_and_a_text_with_many_values_are_hidden():
    for value, inner in (("https://x.y/z", "https:\\/\\/x.y\\/z"), ("Erika", "\\u0045rika")):
        body = json.dumps({"a": value, "b": json.dumps({"c": "C"}).replace("C", inner)})
        (_, _, text), _ = kept(["json:/a"], body.encode())
        assert value not in text and inner not in json.loads(text)["b"]
    body = json.dumps({"a": "1111", "b": "1111x" * (redaction._FINDS + 1)})
    (_, _, text), _ = kept(["json:/a"], body.encode())
    assert json.loads(text) == {"a": HIDDEN, "b": HIDDEN}


def test_a_value_is_found_however_a_url_escapes_it():
    redacted = Redacted([("query:q", "a b-c@d"), ("query:short", "é")], b"")
    for text in ("x=a+b%2Dc%40d", "a%20b-c%40d", "%61%20b%2dc@d", '"a b\\u002dc@d"', "%c3%a9"):
        assert redacted.text(text) == HIDDEN
        assert redacted.is_in(Answer(200, "", text.encode())) or text == "%c3%a9"
    assert redacted.text("100 % of a b-c@d") == f"100 % of {HIDDEN}"
    assert redacted.text("a%20c") == "a%20c"


def test_whole_bodies_addresses_and_parameters():
    (text,), header = kept(
        ["body", "remote", "param:a", "query:q"], b"text", ["body"], query="q=a%20b%63"
    )
    assert text == HIDDEN
    assert header["remote"] == HIDDEN
    assert header["params"]["a"] == HIDDEN
    assert header["query_string"] == "q=%5Bredacted%5D"


def test_arguments():
    body = b'{"card": {"number": "4111", "cvc": 7}, "n": 7}'
    args = ["json:/card", "json:/card/cvc", "json:/n", "json:/card/number"]
    found, _ = kept(["json:/card"], body, args)
    assert found == [HIDDEN] * 4


def test_requests_that_may_be_anybodys():
    redaction = Redaction(["json:/a", "param:id", "header:x-id"])
    headers = {"x-id": "national-17"}
    request = Request("POST", "/a/%31234/b", "q=national-17", headers, b'{"a": 1}', "::1", 0.0, 0.0)
    hidden = redaction.of_request(request, {"id": "1234"}).request(request, whole=True)
    assert (hidden.path, hidden.body) == ("/a/[redacted]/b", HIDDEN.encode())
    assert hidden.headers == {"x-id": HIDDEN}
    assert "national" not in hidden.query_string
    assert (request.path, request.body) == ("/a/%31234/b", b'{"a": 1}')


def test_nobodys_json_is_parsed(monkeypatch):
    monkeypatch.setattr("gateway.config.redaction.read_json_value", None)
    request = Request("POST", "/", "", {"x-id": "national-17"}, b'{"a": "national-17"}', "", 0.0, 0)
    hidden = Redaction(["header:x-id"]).of_request(request, {})
    assert hidden.request(request, whole=True).body == b'{"a": "[redacted]"}'
    assert hidden.request(request).body == b""


@pytest.mark.parametrize(
    ("values", "other"),
    [
        ([f"value {n}" for n in range(101)], ""),
        ([[]] * 101, ""),
        (["x" * redaction._LONG, 1], ""),
        ([f"value {n}" for n in range(90)], "c" * (redaction._WORK // 90)),
        ([f"value {n}" for n in range(90)], "%20" * (redaction._WORK // 90 // 50)),
        ("value", [{}] * (redaction._WORK // redaction._PER_VALUE)),
        ([[[["value"]]]], [[[[1]]]] * (redaction._WORK // 2_000)),
    ],
    ids=["many", "many lists", "long", "large", "escaped", "of many", "to compare"],
)
def test_where_it_would_take_long_to_look_for_values_everything_is_hidden(values, other):
    body = {"a": values, "b": other, "d": 1, "e": None}
    places = ["json:", "json:/b", "json:/d", "json:/e"]
    found, header = kept(["json:/a"], json.dumps(body).encode(), places)
    assert found == [HIDDEN]
    assert header["event"] in ("", HIDDEN)
    redacted = Redacted([("json:/a", values)], json.dumps(body).encode())
    assert redacted.text("any") == HIDDEN and redacted.is_in(Answer(200, "", b"any"))


def test_constants_are_hidden_in_arguments():
    body = json.dumps({"p": {"hiv": True, "cd4": 1.5, "known": None, "b": False}}).encode()
    places = ["json:/p/hiv", "json:/p/cd4", "json:/p/known"]
    (patient, flag), _ = kept(places, body, args=["json:/p", "json:/p/hiv"])
    assert patient == {"hiv": HIDDEN, "cd4": HIDDEN, "known": HIDDEN, "b": False}
    assert flag == HIDDEN


@pytest.mark.parametrize(("body", "found"), [(b"your 4111", True), (b"411", False), (b"", False)])
def test_answers(body, found):
    redacted = Redacted([("json:/a", "4111")], b"")
    assert redacted.is_in(Answer(200, "text/plain", body)) is found
    assert redacted.is_in(Answer(200, "", b"", {"Location": "/4111"})) is True


@pytest.mark.parametrize("text", ["ΟΔΟΣ", "İstanbul", "Straße", "K.Å."])
def test_a_value_is_in_no_text_in_upper_or_lower_case_either(text):
    assert all(len(_lower(each)) == 1 for each in map(chr, range(0x11_0000)))
    redacted = Redacted([("json:/a", text)], b"")
    for each in (text, text.lower() if "İ" not in text else text):
        assert redacted.text(f"in {each}x and {each}") == f"in {HIDDEN}x and {HIDDEN}"


def test_nothing_outlives_a_delivery_with_values(monkeypatch):
    # `re` keeps what it has compiled, and takes long for long texts.
    monkeypatch.setattr("gateway.config.redaction.re", None)
    assert Redacted([("json:/a", "1234")], b"").text("x1234x") == f"x{HIDDEN}x"


@given(st.text(min_size=4), st.text(), st.text())
def test_a_value_is_in_no_text(value, before, after):
    redacted = Redacted([("json:/a", value)], b"")
    text = redacted.text(f"{before}{value}{after}")
    assert value not in text.replace(HIDDEN, "") or value in before + after or value in HIDDEN


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"redact": ["json"]}, "is written as json:/pointer"),
        ({"redact": ["event"]}, "is written as json:/pointer"),
        ({"redact": ["param:b"]}, "redact: the path has no parameter b"),
        ({"redact": ["json:/q"], "queue": "q-{json:/q}", "queue_pattern": "q-[a-z]"},
         "redact: json:/q names the queue"),
        ({"redact": ["json:/response_url"], "late": "slack", "answer": "accept"},
         "redact: a late answer needs json:/response_url"),
    ],
)  # fmt: skip
def test_what_cannot_be_redacted(settings, problem):
    with pytest.raises(ValueError, match=problem):
        Route(path="/{a}", **settings)

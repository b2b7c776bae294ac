"""Envelopes, forms and places in JSON: what is read, and what is refused with 400 only."""

from __future__ import annotations

import json
import sys
from urllib.parse import parse_qsl, urlencode

import pytest
import xmltodict
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.nesting import MAX_LEVELS
from gateway.sources.places import Seen
from gateway.sources.reading import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_FIELDS,
    MAX_PARAMETERS,
    at,
    identity,
    name,
    pointer,
    read_form,
    read_if_json,
    read_json,
    read_loosely,
    read_query,
    read_xml,
    utf8,
)
from tests.unit.sources.messages import post, texts
from tests.unit.sources.odd_bodies import (
    CUT_JSON,
    ODD_JSON,
    ODD_XML,
    SLOPPY_JSON,
    SLOPPY_XML,
    spoilt,
)

REFUSED = {**ODD_JSON, **SLOPPY_JSON}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_odd_json_is_refused(body):
    with pytest.raises(BadRequest):
        read_json(body)


@pytest.mark.parametrize("body", CUT_JSON.values(), ids=CUT_JSON)
def test_half_surrogates_stay_as_they_are(body):
    assert json.dumps(read_json(body), separators=(",", ":")).encode() == body.replace(b"uD", b"ud")


READ = {
    **CUT_JSON,
    **SLOPPY_JSON,
    "a name twice": b'{"a":1,"a":2}',
    "100,000 digits": b'{"a":%b}' % (b"9" * 100_000),
    "5,000 digits below zero": b'{"a":-%b}' % (b"9" * 5_000),
    "198 lists deep": b'{"a":%b}' % (b"[" * 198 + b"]" * 198),
}


@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_a_schemes_json_may_be_sloppy(body):
    assert read_loosely(body).keys() == read_if_json(body).keys() == {"a"}
    assert read_loosely(b"[%b]" % body.removeprefix(b"\xef\xbb\xbf"))[0].keys() == {"a"}


def test_digits_are_limited_by_python():
    # What "5,000 digits" relies on: whoever lifts it has chosen to wait for int().
    assert 0 < sys.get_int_max_str_digits() < 5_000


@pytest.mark.parametrize("end", [b"1", rb'"\u00e4"'])
@pytest.mark.parametrize(("begin", "close"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_json_may_be_as_deep_as_allowed_whatever_python_allows(begin, close, end):
    def nested(levels: int) -> bytes:  # inside an object
        return b'{"a":' + begin * (levels - 1) + end + close * (levels - 1) + b"}"

    assert read_json(nested(MAX_LEVELS))
    with pytest.raises(BadRequest, match="more than 200 levels"):
        read_json(nested(MAX_LEVELS + 1))


@pytest.mark.parametrize(
    "value",
    ["[" * 2_000, ["{}"] * 2_000, [[]] * 2_000, [{"a": {}}] * 2_000, {"[" * 900: {"{" * 900: 1}}],
    ids=["a text", "texts", "lists", "objects", "names"],
)
def test_many_brackets_make_no_depth(value):
    assert read_json(json.dumps({"a": value}).encode()) == {"a": value}


@pytest.mark.parametrize("body", ODD_XML.values(), ids=ODD_XML)
def test_odd_xml_is_refused(body):
    with pytest.raises(BadRequest):
        read_xml(body)


@pytest.mark.parametrize("body", SLOPPY_XML.values(), ids=SLOPPY_XML)
def test_what_xml_does_not_allow_is_replaced(body):
    assert "\ufffd" in read_xml(body)["a"]


def test_only_what_xml_does_not_allow_is_replaced():
    body = "<xml><a>\x1d<![CDATA[&#65;]]>&#65;&#x1F600;\t😀</a><b>\x10</b></xml>".encode()
    assert read_xml(body) == {"a": "\ufffd&#65;A😀\t😀", "b": "\ufffd"}
    for odd in (b"\x1d", b"&#0;", b"\xff"):
        for refused in (b"<!DOCTYPE x [<!ENTITY e '1'>]><x><a>%b&e;</a></x>", b"<x><a>%b</x></a>"):
            with pytest.raises(BadRequest):
                read_xml(refused % odd)


def test_xml_may_be_as_deep_and_have_as_many_elements_as_allowed():
    deep = b"<a>" * MAX_DEPTH + b"</a>" * MAX_DEPTH
    many = b"<x>" + b"<a/>" * (MAX_ELEMENTS - 1) + b"</x>"
    assert read_xml(deep) == read_xml(many) == {"a": ""}
    for body in (b"<a>" + deep + b"</a>", many.replace(b"<x>", b"<x><a/>")):
        with pytest.raises(BadRequest):
            read_xml(body)


def test_only_the_text_right_below_the_root_is_read():
    some = b"x<a>1</a><b>2<c>3</c>4</b><a>5</a><d><![CDATA[<a>]]>&amp;&#65;</d><e f='6'/>"
    assert read_xml(b"<xml>%b</xml>" % some) == {"a": "1", "b": "24", "d": "<a>&A", "e": ""}


def test_xml_may_say_that_it_is_utf_8():
    body = '\ufeff<?xml version="1.0" encoding="UTF-8"?><xml><a>ä</a></xml>'.encode()
    assert read_xml(body) == {"a": "ä"}


def test_too_many_parameters_are_refused():
    assert read_query("&".join(["a=1"] * MAX_PARAMETERS)) == {"a": "1"}
    with pytest.raises(BadRequest):
        read_query("&".join(["a=1"] * (MAX_PARAMETERS + 1)))


def test_a_query_may_have_to_be_utf_8():
    assert read_query("a=%C3%A4", "strict") == {"a": "ä"}
    with pytest.raises(BadRequest):
        read_query("a=%ff", "strict")


def test_the_last_parameter_of_a_name_wins_and_bad_utf_8_is_replaced():
    assert read_query("a=1&b=&a=2%20+&c=%ff&%fe=x") == {
        "a": "2  ", "b": "", "c": "\ufffd", "\ufffd": "x",
    }  # fmt: skip


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(-1e9, 1e9)
names = st.text(max_size=9)
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(names, leaves, max_size=3)
objects = st.dictionaries(names, values, max_size=4)
elements = st.dictionaries(st.from_regex("[A-Za-z_]{1,9}", fullmatch=True), texts)


@given(objects, st.booleans())
def test_json_is_read_as_it_was_written(value, ascii):
    assert read_json(json.dumps(value, ensure_ascii=ascii).encode()) == value


@given(elements)
def test_xml_is_read_as_it_was_written(fields):
    assert read_xml(xmltodict.unparse({"xml": fields}).encode()) == fields


json_bytes = objects.map(lambda value: json.dumps(value).encode())
xml_bytes = elements.map(lambda fields: xmltodict.unparse({"xml": fields}).encode())


@given(st.binary(max_size=300) | spoilt(json_bytes))
def test_nothing_but_bad_request_comes_of_json(body):
    try:
        value = read_json(body)
    except BadRequest:
        return
    assert type(value) is dict
    json.dumps(value).encode()


@given(st.binary(max_size=300) | spoilt(xml_bytes))
def test_nothing_but_bad_request_comes_of_xml(body):
    try:
        fields = read_xml(body)
    except BadRequest:
        return
    "".join(f"{key}{text}" for key, text in fields.items()).encode()


@given(st.text(max_size=200) | st.text("a=&%+;f8 ", max_size=100))
def test_nothing_but_bad_request_comes_of_a_query(text):
    assert all("".join(pair).encode() is not None for pair in read_query(text).items())


# Forms and places in JSON -------------------------------------------------------------------------


escapes = st.sampled_from(["%26", "%3D", "%3d", "%25", "%5c", "%00", "%C4%A6", "\\", "\\x41", "+"])
raw = st.binary(max_size=5).filter(lambda text: b"%" not in text).map(lambda b: b.decode("latin-1"))
forms = st.lists(escapes | raw | st.sampled_from("&=")).map(lambda parts: "".join(parts))


@given(forms)
@example(r"a=\u0126\u013d\N{BULLET}\\x26&\=1&==2&&=&b&%C4%A6=%C4%BD")
def test_a_form_is_read_as_the_standard_library_does(form):
    fields = parse_qsl(form, keep_blank_values=True, encoding="latin-1")
    assert read_form(form.encode("latin-1")) == fields


@given(st.lists(st.tuples(st.text(), st.text()).filter(any)))
def test_what_was_meant_is_utf8(fields):
    form = urlencode(fields).encode()
    assert [(utf8(key), utf8(value)) for key, value in read_form(form)] == fields


@pytest.mark.parametrize(
    "form", [b"%", b"a=%", b"a=%4", b"a=%4&b", b"%zz", b"%u0126", b"%%41", b"%\n41"]
)
def test_a_percent_sign_begins_an_escape(form):
    with pytest.raises(BadRequest):
        read_form(form)


def test_a_form_may_have_so_many_fields():
    assert len(read_form(b"&".join([b"a"] * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(BadRequest):
        read_form(b"&" * MAX_FIELDS)


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (0, "0"), (-7, "-7"), ("", ""), (None, ""), (True, ""), (1.5, ""), (["a"], "")],
)
def test_texts_and_integers_are_names(value, text):
    assert name(value) == text


@pytest.mark.parametrize("text", ["\ud83d", "a\ud800\udfff", "x" * 5_000])
def test_any_name_can_be_encoded(text):
    assert name(text).encode() == text.encode(errors="replace")


def test_an_identity_is_made_of_texts_integers_true_and_false():
    parts = ["a", 7, "\ud83d", None, 1.5, True, ["b"], {"c": 1}]
    assert identity(*parts) == r'["a", 7, "\ud83d", "", "", true, "", ""]'
    for key in ("", None, 1.5, True, ["b"], {"c": 1}):
        assert identity(key, "a") == ""
    assert identity(0) == "[0]"


def test_parts_of_an_identity_do_not_run_together():
    identities = [("a", "b"), ("ab", ""), ("a", "", "b"), ('a", "b',), ("a:b",), (7,), ("7",)]
    assert len({identity(*parts) for parts in identities}) == len(identities)


@pytest.mark.parametrize("form", [b"a=%", b"&" * MAX_FIELDS])
def test_a_verified_form_need_not_be_readable(form):
    assert Seen(post("", form)).form == {}
    assert Seen(post("", b"a=b")).form == {"a": "b"}


NO_OBJECTS = [b"[]", b"{", b"{}x", b'{"a":' * 201 + b"1" + b"}" * 201]


@pytest.mark.parametrize("body", [*ODD_JSON.values(), *NO_OBJECTS])
def test_what_is_no_json_object_has_no_fields(body):
    assert read_if_json(body) == {}


def test_the_pointers_of_the_rfc():
    # https://www.rfc-editor.org/rfc/rfc6901#section-5
    document = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, " ": 7, "~1": 9}
    expected = {"": document, "/foo": ["bar", "baz"], "/foo/0": "bar", "/": 0, "/a~1b": 1}
    expected |= {"/c%d": 2, "/m~0n": 8, "/ ": 7, "/~01": 9}
    assert {text: at(document, pointer(text)) for text in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "/none", "/foo/2", "/foo/-", "/foo/-1", "/foo/99999999999", "/foo/٣", "/foo/bar",
        "/foo/0/x",
    ],
)  # fmt: skip
def test_a_pointer_to_nothing(text):
    assert at({"foo": ["bar", "baz"]}, pointer(text)) is None

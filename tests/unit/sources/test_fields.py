"""The forms and JSON places that schemes read."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.sources.places import Seen
from gateway.sources.reading import (
    MAX_FIELDS,
    at,
    identity,
    name,
    pointer,
    read_form,
    read_if_json,
    utf8,
)
from tests.unit.sources.messages import post

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


LOOSE = {
    b'{"a":NaN,"b":[Infinity,-Infinity,-0,1e999]}': {"a", "b"},
    rb'{"a":"\ud83d","\ud800":1}': {"a", "\ud800"},
    b'{"a":"\x1d\n\0"}': {"a"},
    b'{"a":"\xff\xed\xa0\x80\xf0\x9f"}': {"a"},
    b'\xef\xbb\xbf{"a":1}': {"a"},
    b'{"a":1,"a":2}': {"a"},
    b'{"a":%b}' % (b"9" * 100_000): {"a"},
    b'{"a":-%b}' % (b"9" * 5_000): {"a"},
    b'{"a":%b}' % (b"[" * 199 + b"]" * 199): {"a"},
}


@pytest.mark.parametrize("body", LOOSE)
def test_a_sloppy_senders_json_is_read(body):
    assert read_if_json(body).keys() == LOOSE[body]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b"{",
        b"{}x",
        b'{"a":' * 201 + b"1" + b"}" * 201,
        b'{"a":' * 100_000,
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_json_object_has_no_fields(body):
    assert read_if_json(body) == {}


def test_the_pointers_of_the_rfc():
    # https://www.rfc-editor.org/rfc/rfc6901#section-5
    document = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, " ": 7}
    expected = {"": document, "/foo": ["bar", "baz"], "/foo/0": "bar", "/": 0, "/a~1b": 1}
    expected |= {"/c%d": 2, "/m~0n": 8, "/ ": 7}
    assert {text: at(document, pointer(text)) for text in expected} == expected


@pytest.mark.parametrize("text", ["/none", "/foo/2", "/foo/-", "/foo/٣", "/foo/bar", "/foo/0/x"])
def test_a_pointer_to_nothing(text):
    assert at({"foo": ["bar", "baz"]}, pointer(text)) is None

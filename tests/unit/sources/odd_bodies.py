"""Bodies that cannot be read, those that sloppy senders write, and good ones spoilt."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

MEGABYTE = 1024 * 1024

ODD_JSON = {
    "empty": b"",
    "5,000 lists deep": b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "5,000 objects deep": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "1 MB deep": b"[" * MEGABYTE,
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a BOM": '{"a":1}'.encode("utf-16-le"),
    "UTF-32": '{"a":1}'.encode("utf-32-be"),
    "a list": b"[{}]",
    "a number": b"1",
    "null": b"null",
    "cut off": b'{"a":1',
    "more behind it": b'{"a":1}{}',
    "a NUL behind it": b'{"a":1}\0',
}

ODD_XML = {
    "empty": b"",
    "only space": b" \n",
    "1 MB of nesting": b"<a>" * (MEGABYTE // 3),
    "1 MB of nesting, closed": b"<a>" * (MEGABYTE // 7) + b"</a>" * (MEGABYTE // 7),
    "1 MB of elements": b"<x>" + b"<a/>" * (MEGABYTE // 4) + b"</x>",
    "a DTD": b"<!DOCTYPE xml><xml><a>1</a></xml>",
    "a DTD elsewhere": b'<!DOCTYPE xml SYSTEM "file:///etc/passwd"><xml><a>1</a></xml>',
    "an entity": b'<!DOCTYPE x [<!ENTITY e "1">]><x><a>&e;</a></x>',
    "an external entity": b'<!DOCTYPE x [<!ENTITY e SYSTEM "/etc/passwd">]><x><a>&e;</a></x>',
    "entities of entities": b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><x><a>&b;</a></x>',
    "an unknown entity": b"<xml><a>&e;</a></xml>",
    "UTF-16": "<xml><a>1</a></xml>".encode("utf-16"),
    "UTF-16 without a BOM": "<xml><a>1</a></xml>".encode("utf-16-le"),
    "UTF-32": "<xml><a>1</a></xml>".encode("utf-32"),
    "cut off": b"<xml><a>1</a>",
    "closed crosswise": b"<xml><a>1</xml></a>",
    "two roots": b"<xml/><xml/>",
    "an attribute twice": b"<xml><a b='1' b='2'/></xml>",
    "JSON": b'{"a":1}',
}


#: JSON with half surrogates, as senders write that cut texts within an emoji.
CUT_JSON = {
    "a lone surrogate": rb'{"a":"\ud800"}',
    "a lone surrogate in capitals": rb'{"a":"\uD800"}',
    "a lone surrogate as a name": rb'{"a":{"\udfff":1}}',
    "surrogates the wrong way round": rb'{"a":"\ude00\ud83d"}',
}

#: JSON that can be read, and that is refused where a route needs it.
SLOPPY_JSON = {
    "5,000 digits": b'{"a":' + b"9" * 5_000 + b"}",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":[Infinity]}',
    "-Infinity": b'{"a":-Infinity}',
    "out of range": b'{"a":[1e999]}',
    "below range": b'{"a":-1E+400}',
    "UTF-8 with a BOM": b'\xef\xbb\xbf{"a":1}',
    "bad UTF-8": b'{"a":"\xff"}',
    "surrogates in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "a line feed in a string": b'{"a":"\n"}',
}

#: JSON with the fields that senders' blocks read, and other bodies in its place.
SENT_JSON = {
    "half an emoji": rb'{"id":"1\ud83d","type":"a\ud83d","event":{"type":"\ud83d"},"update_id":1}',
    "half an emoji as a name": rb'{"\ud83d":{"\udfff":1}}',
    "NaN": b'{"id":1,"type":"a","x":[NaN,Infinity,-0,1e999]}',
    "5,000 digits": b'{"id":%b,"type":"a"}' % (b"9" * 5_000),
    "5,000 deep": b'{"id":1,"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "a name twice": b'{"id":1,"id":2,"type":"a","type":"b"}',
    "control characters": b'{"id":"1","type":"a\x1d","text":"\x10\n"}',
    "bad UTF-8": b'{"id":"\xff","type":"\xf0\x9f"}',
    "UTF-16": '{"id":"1","type":"a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"id":"1","type":"a"}',
    "a long event": b'{"id":"1","type":"%b","event":{"type":"%b"}}' % (b"x" * 5_000, b"x" * 5_000),
    "a long id": b'{"id":"%b","event_id":"%b","eventId":"%b"}' % ((b"x" * 5_000,) * 3),
    "odd types": b'{"id":{},"type":[],"event":[],"event_id":true,"update_id":1.5,"object":{}}',
    "a list": b'[{"id":1}]',
    "a text": b'"text"',
    "a number": b"7",
    "null": b"null",
    "no JSON": b"\x00\xff{",
    "nothing": b"",
}

#: XML with what XML does not allow, which is read nevertheless.
SLOPPY_XML = {
    "UTF-7, declared": b'<?xml version="1.0" encoding="utf-7"?><x><a>+ADw-\xff</a></x>',
    "GBK, declared": '<?xml version="1.0" encoding="gbk"?><x><a>您</a></x>'.encode("gbk"),
    "bad UTF-8": b"<xml><a>\xff</a></xml>",
    "surrogates in UTF-8": b"<xml><a>\xed\xa0\x80</a></xml>",
    "a surrogate by number": b"<xml><a>&#xd800;</a></xml>",
    "NUL": b"<xml><a>\0</a></xml>",
    "NUL by number": b"<xml><a>&#0;</a></xml>",
    "a control character": b"<xml><a>\x08</a></xml>",
    "control characters in CDATA": b"<xml><a><![CDATA[\x1dx\x10]]></a></xml>",
    "a control character by number": b"<xml><a>&#x1d;&#%b29;&#%b;&#xfffffffff;</a></xml>"
    % (b"0" * 9_000, b"9" * 9_000),
    "half an emoji": b"<xml><a><![CDATA[x\xf0\x9f]]></a></xml>",
}


@st.composite
def spoilt(draw: Callable, bodies: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with some of them replaced, left out or put in."""
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(body)

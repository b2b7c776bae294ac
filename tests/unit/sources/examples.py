"""An example of each scheme, for the tests that run over all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st
from nacl.signing import SigningKey

from gateway.sources import BLOCKS, SCHEMES, find
from loadtest.examples import example

NOW = 1_800_000_000.25
ID = "123456789"
PUBLIC_URL = "https://hooks.example.com"


@dataclass(frozen=True)
class Example:
    """What a sender of one scheme sends.

    It is the scheme's own `loadtest.examples.Example` with a delivery; `bodies` are those
    that the sender may send.
    """

    options: dict[str, Any]
    other_secret: str
    body: bytes
    proof: str
    event: str = ""
    identity: str = ""
    timed: bool = False
    receiver: dict[str, Any] | None = None
    bodies: st.SearchStrategy[bytes] = st.binary(max_size=200)


def objects(**fields: Any) -> st.SearchStrategy[bytes]:
    """Any JSON objects with `fields` in them."""
    text = st.text(max_size=20)
    more = st.dictionaries(text, st.none() | st.integers() | text | st.lists(text), max_size=3)
    return more.map(lambda some: json.dumps({**some, **fields}).encode())


def public(seed: bytes) -> bytes:
    return bytes(SigningKey(seed).verify_key)


#: What senders may send whose samples do not show it.
_BODIES = {
    **dict.fromkeys(
        ("graphcms", "hubspot-v1", "hubspot-v2"),
        st.text(st.characters(codec="utf-8")).map(lambda text: text.encode()),
    ),
    "feishu": objects(token="v"),
    "twilio": st.dictionaries(st.text(), st.text()).map(lambda d: urlencode(d).encode())
    | objects(),
    "wechat": objects(MsgType="text"),
    "wecom": objects(MsgType="text"),
    "x": objects(),
}


def _example(scheme: str) -> Example:
    said = example(scheme)
    options = find(scheme).options_class.model_validate({"scheme": scheme, **said.options})
    source = find(scheme)(options, PUBLIC_URL)
    event, body = source.sample("", ID, NOW, said.options.get("verification_token", ""))
    if said.opaque:
        bodies = st.binary(max_size=200)
    elif body.startswith(b"{"):
        bodies = objects(**json.loads(body))
    else:
        bodies = st.just(body)
    return Example(
        options=said.options,
        other_secret=said.other_secret,
        body=body,
        proof=said.proof,
        event=event,
        identity=said.identity or (sha256(body).hexdigest() if source.identifies else ""),
        timed=said.timed,
        receiver=said.receiver or None,
        bodies=_BODIES.get(scheme, bodies),
    )


#: What the longer suites run over: all code, and of the blocks those with each mechanism. The
#: suites of contracts and vectors run over all.
MECHANISMS = (
    "discord", "github", "gitlab", "hubspot", "meta", "mux", "orb", "shopify", "slack", "standard",
    "stripe", "telegram", "x",
)  # fmt: skip
DEEP = sorted(scheme for scheme in SCHEMES if scheme not in BLOCKS or scheme in MECHANISMS)
#: Senders whose signature is within the body, or within JSON that has more in it.
IN_BODY = {
    name
    for name in BLOCKS
    if not find(name).block.signature[0].startswith(("header:", "query:"))
    or "|" in find(name).block.signature[0]
}
EXAMPLES = {scheme: _example(scheme) for scheme in SCHEMES}

"""An example of each scheme for the benchmark and the tests: secrets, and where a signature is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.sources import find


@dataclass(frozen=True)
class Example:
    """How an example of a scheme is signed.

    ``options`` are those of ``[sources.NAME]`` with which the sender signs; ``receiver`` has those
    that differ for the receiver (a public key). ``other_secret`` does not verify the sender's
    signatures. ``proof`` is the header or query parameter with the signature; where it is
    ``timed``, it expires. ``identity`` is in the identity of a sample with the id 123456789; empty:
    the digest of the body is the identity. ``opaque``: the sender's body may be any bytes, as
    `verify` does not read it.
    """

    options: dict[str, Any]
    other_secret: str
    proof: str
    timed: bool = False
    receiver: dict[str, Any] = field(default_factory=dict)
    identity: str = "123456789"
    opaque: bool = False


_AES_KEY = "4g5j64qlyl3zvetqxz5jiocdr586fn2zvjpa8zls3ij"

#: The schemes that are code, and that of one's own blocks.
_WRITTEN = {
    "dingtalk": Example(
        {"secrets": "123456", "aes_key": _AES_KEY, "receive_id": "suite4x"},
        other_secret="123457",
        proof="msg_signature",
        timed=True,
    ),
    "feishu": Example(
        {"secrets": "test key", "verification_token": "v"},
        other_secret="test kez",
        proof="x-lark-signature",
        timed=True,
    ),
    "hmac": Example(
        {
            "secrets": "A-secret_token", "encoding": "base64", "prefix": "v1=",
            "signed": "{id}.{time}.{body}", "signature": "header:X-Signature",
            "algorithm": "hmac-sha512", "id": "header:X-Id", "time": "header:X-Time",
            "event": "header:X-Event",
        },
        other_secret="A-secret_tokem",
        proof="x-signature",
        timed=True,
        opaque=True,
    ),
    "twilio": Example({"secrets": "12345"}, other_secret="12346", proof="x-twilio-signature"),
    "wechat": Example(
        {"secrets": "AAAAA", "aes_key": "A" * 43, "receive_id": "wxba5fad812f8e6fb9"},
        other_secret="AAAAB",
        proof="msg_signature",
        timed=True,
        identity="",
    ),
    "wecom": Example(
        {"secrets": "QDG6eK", "aes_key": _AES_KEY, "receive_id": "wx5823bf96d3bd56c7"},
        other_secret="QDG6eL",
        proof="msg_signature",
        timed=True,
        identity="",
    ),
}  # fmt: skip


def example(scheme: str) -> Example:
    """Return the example of a scheme: of a block what follows from it. Raises KeyError."""
    block = getattr(find(scheme), "block", None)
    if block is None or scheme in _WRITTEN:
        return _WRITTEN[scheme]
    given = {"secrets": "A-secret_token", "other_secret": "A-secret_tokem", **block.example}
    options = {"secrets": given["secrets"]}
    if any(each.token or "{token}" in each.sha256 for each in block.handshakes):
        options["verify_token"] = "chosen"
    body = [text for _, text in block.texts if text.startswith(("json:", "form:"))]
    ids = block.identity or block.id
    return Example(
        options,
        other_secret=str(given["other_secret"]),
        proof=block.places(block.signature[0])[0].name,
        timed=bool(block.time) and block.time[0].startswith(("header:", "sig:")),
        receiver={"secrets": given["public"]} if "public" in given else {},
        identity="" if ids in ([], ["digest"]) else "123456789",
        opaque=not any(text in body for text in (*block.time, *block.signed_places, *ids[:1]))
        and not block.handshakes,
    )

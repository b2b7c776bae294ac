"""The keys of a block: from the secrets of a source, or from what was fetched."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress

from gateway.errors import BadRequest
from gateway.sources.block import Block
from gateway.sources.envelopes import read_json
from gateway.sources.fields import at, pointer
from gateway.sources.keys import (
    ENCODINGS,
    JWT_SHARED,
    KINDS,
    POLAR,
    PUBLIC,
    PUBLIC_KINDS,
    PUBLIC_TEXTS,
    PUBLIC_VERSION,
    SHARED,
    TOKENS,
    Key,
    SharedKey,
    Token,
    decoded,
)

#: The most keys of a set that are read.
MAX_KEYS = 64


def texts_of(secrets: Iterable[str], block: Block) -> list[bytes]:
    """Return the secrets beside public keys that are fetched: what a request has to have in it."""
    texts = [each.encode() for each in secrets if block.key_url and not is_public(each, block)]
    if block.key_url and not texts and "{key}" in block.signed:
        raise ValueError("a public key is not enough; add what the sender signs beside the body")
    return texts


def is_public(secret: str, block: Block) -> bool:
    """Is a secret of a sender whose key may be fetched the public key itself?"""
    if "-----BEGIN" in secret or block.key != "spki":
        return "-----BEGIN" in secret
    from gateway.sources.public_keys import public

    try:
        return bool(public(secret, block.key, ""))
    except ValueError:
        return False


def keys_of(secret: str, block: Block, texts: Sequence[bytes] = ()) -> list[Key]:
    """Make the keys of a secret, as `block` describes it. Raises ValueError, with what is valid.

    `texts` are the secrets that are no keys, of a sender whose public keys are fetched.
    """
    text, kind, algorithm = secret.encode(), block.key, block.algorithm
    if text in texts:
        return []
    if (algorithm == "basic" or "{name}" in block.signed) and ":" not in secret:
        raise ValueError(f"a secret is name:{'password' if algorithm == 'basic' else 'key'}")
    if algorithm in TOKENS:
        basic = b"Basic " + b64encode(text)
        return [Token(basic if algorithm == "basic" else block.prefix.encode() + text)]
    name, inside = "", "{key}" in block.signed or "{name}" in block.signed
    if "{name}" in block.signed:
        name, _, secret = secret.partition(":")
        text = secret.encode()
    encoding = ENCODINGS[block.encoding]
    prefixes = [block.prefix.replace("{hash}", a.rpartition("-")[2]) for a in block.algorithms]
    starts = [*zip(map(str.encode, prefixes), block.algorithms, strict=True)]
    whpk = kind == "whsec" and secret.startswith(PUBLIC)
    in_pem = block.is_jwt and (kind in PUBLIC_KINDS or "-----BEGIN" in secret)
    if (algorithm in SHARED or block.is_jwt) and not (whpk or in_pem):
        if secret.startswith(PUBLIC_TEXTS):
            raise ValueError(f"a public key is no secret; {algorithm} needs one that nobody knows")
        if kind == "whsec" and not secret.startswith(POLAR):  # Supabase shows the version before it
            secret = secret.removeprefix("v1,").removeprefix("whsec_")
            text = decoded(secret, "base64", KINDS[kind])
        elif kind in ENCODINGS:
            text = decoded(secret, kind, KINDS[kind])
        if block.is_jwt:
            starts, encoding = [*JWT_SHARED.items()], ENCODINGS["base64url"]
        own = (encoding, inside, name.encode())
        return [SharedKey(text, each, start, *own) for start, each in starts]
    # Imported when it is used: this takes time.
    from gateway.sources.public_keys import PublicKey, jwt_keys, public

    if whpk:
        if any(text.startswith("hmac:") for each in block.handshakes for text in each.reads):
            raise ValueError("a public key cannot sign the handshake's answer; give the secret")
        keys = public(secret.removeprefix(PUBLIC), "raw-base64", KINDS[kind])
        return [PublicKey(keys, "ed25519", PUBLIC_VERSION, ENCODINGS["base64"])]
    kind = kind if kind in PUBLIC_KINDS else "pem"
    keys = public(secret, kind, KINDS[kind])
    if block.is_jwt:
        return jwt_keys(keys)
    return [PublicKey(keys, each, start, encoding, texts) for start, each in starts]


def keys_in(body: bytes, block: Block, texts: Sequence[bytes]) -> dict[str, list[Key]]:
    """Return the public keys in what was fetched, by their ids. Raises ValueError."""
    # Imported when it is used: this takes time.
    from gateway.sources.public_keys import Pair, jwt_keys, of_jwk

    if block.key_form == "pem":
        return {"": keys_of(body.decode(), block, texts)}
    try:
        document = read_json(body)
    except BadRequest as exc:
        raise ValueError(exc.detail) from exc
    if block.key_form == "jwks":
        keys = document.get("keys")
        found = {}
        for jwk in keys[:MAX_KEYS] if isinstance(keys, list) else ():
            with suppress(ValueError, AttributeError):  # a set may have keys for something else
                found[str(jwk.get("kid", ""))] = jwt_keys(Pair(of_jwk(jwk)))
        return found
    if block.key_form == "kids":
        some = {kid: text for kid, text in document.items() if isinstance(text, str)}
    else:
        some = {"": str(at(document, pointer(block.key_form)))}
    return {kid: keys_of(text, block, texts) for kid, text in some.items()}

"""Feishu, which is called Lark outside China.

https://open.feishu.cn/document/server-docs/event-subscription-guide/overview
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha1, sha256
from hmac import compare_digest
from secrets import token_bytes, token_hex

from pydantic import Field, SecretStr

from gateway.answer import JSON, Answer
from gateway.delivery import Request
from gateway.errors import (
    NotDecrypted,
    RequestError,
    SignatureMismatch,
    SignatureMissing,
    Unverified,
)
from gateway.sources import base
from gateway.sources.base import Draft, Sample, Signed, Source, Verified
from gateway.sources.proofs import check, check_time, digest, header, is_utf8, raw, secrets
from gateway.sources.reading import MAX_UNPROVEN, at, identity, name, read_if_json, read_json
from gateway.sources.wechat_crypto import decrypt_cbc, encrypt_cbc, unpadded

SIGNATURE = "x-lark-signature"
TIMESTAMP = "x-lark-request-timestamp"
NONCE = "x-lark-request-nonce"
#: What Feishu calls a card's callback of the old form.
CARD = "card.action.trigger_v1"
_BLOCK = 16


class Options(base.Options):
    """The secrets are encrypt keys."""

    #: The app's Verification Token; if it is set, every event and challenge has to contain it.
    verification_token: SecretStr | None = Field(None, min_length=1)


class Feishu(Source):
    """Signs the body and encrypts the event in it, in schema 2.0 or 1.0.

    ``event_id`` or ``uuid`` with the app, the tenant and the type identify an event, or else the
    digest of its body.

    A `url_verification` may come without a signature. It is answered if one of the encrypt keys
    decrypts it, and if it has the verification token, where that is configured. The answer repeats
    the challenge and has no other effect. Any other request without a signature gets the same 401,
    whatever was wrong with it.

    A card's callback of the old form is not encrypted, and is signed with the verification token;
    its challenge is not signed, and has that token. Its event is `CARD`, and the digest of its body
    identifies it. https://github.com/larksuite/oapi-sdk-python (card/action_handler.py)
    """

    samples = {
        "": Sample(
            "im.message.receive_v1",
            '{"schema":"2.0","header":{"event_id":"$id","event_type":"$event",'
            '"create_time":"$time","token":"$token"},"event":{"text":"größe"}}',
        )
    }

    options_class = Options
    options: Options
    deadline = 2.5
    fallback = ""
    secret_headers = frozenset([SIGNATURE])

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._keys = secrets(options)
        token = options.verification_token
        self._token = token.get_secret_value().encode() if token else b""

    def verify(self, request: Request) -> Verified:
        if SIGNATURE not in request.headers:
            return self._unsigned(request.body)
        timestamp = header(request, TIMESTAMP)
        check_time(timestamp, request.received_at, self.options.tolerance)
        given, signed = raw(header(request, SIGNATURE)), raw(timestamp + header(request, NONCE))
        if self._token and len(given) == 2 * sha1().digest_size:
            # Who has a hash, and not the token, can continue the text behind its padding: no UTF-8.
            if not is_utf8(request.body):
                raise Unverified("The body is not UTF-8.")
            check([given], [sha1(signed + self._token + request.body).hexdigest().encode()])
            tenant = read_if_json(request.body).get("tenant_key")
            return Verified(request.body, identity(digest(request.body), tenant), CARD)
        for key in self._keys:
            if compare_digest(_proof(key, signed, request.body), given):
                try:
                    plain = unpadded(_decrypt(request.body, key), _BLOCK)
                except ValueError as exc:
                    raise NotDecrypted("The event cannot be decrypted.") from exc
                return self._read(plain)
        raise SignatureMismatch

    def _unsigned(self, body: bytes) -> Verified:
        small = len(body) <= MAX_UNPROVEN
        for key in [*self._keys, *([b""] if self._token else ())] if small else ():
            try:
                # The padding is not checked: not even the time of the answer may show whether it
                # was right.
                plain = _decrypt(body, key) if key else body
                padding = int.from_bytes(plain[-1:]) if key else 0
                verified = self._read(plain[: len(plain) - padding])
            except RequestError:
                continue
            if verified.challenge is not None:
                return verified
        raise SignatureMissing(f"The header {SIGNATURE} is missing.")

    def _read(self, message: bytes) -> Verified:
        event = read_if_json(message)
        if self._token:
            given = at(event, ["header", "token"]) or event.get("token")
            check([name(given).encode()], [self._token])
        kind = event.get("type")
        challenge = None
        if kind == "url_verification":
            text = json.dumps({"challenge": name(event.get("challenge"))})
            challenge = Answer(200, JSON, text.encode())
        else:
            kind = at(event, ["header", "event_type"]) or at(event, ["event", "type"])
        account = at(event, ["header", "app_id"]) or at(event, ["event", "app_id"])
        tenant = at(event, ["header", "tenant_key"]) or at(event, ["event", "tenant_key"])
        event_id = at(event, ["header", "event_id"]) or event.get("uuid")
        return Verified(
            message,
            identity=identity(event_id, account, tenant, kind) or digest(message),
            event=name(kind),
            account=name(account),
            challenge=challenge,
        )

    def sign(self, draft: Draft) -> Signed:
        key, timestamp, nonce = self._keys[0], str(int(draft.now)), token_hex(8)
        iv = token_bytes(_BLOCK)
        sealed = iv + encrypt_cbc(draft.body, sha256(key).digest(), iv, _BLOCK)
        body = json.dumps({"encrypt": b64encode(sealed).decode()}).encode()
        proof = _proof(key, (timestamp + nonce).encode(), body).decode()
        headers = {TIMESTAMP: timestamp, NONCE: nonce, SIGNATURE: proof}
        return Signed(body, {"content-type": JSON, **headers})


def _proof(key: bytes, signed: bytes, body: bytes) -> bytes:
    return sha256(signed + key + body).hexdigest().encode()


def _decrypt(body: bytes, key: bytes) -> bytes:
    """Return the padded event in `body`. Raises `Unverified`, and `BadRequest` for invalid JSON."""
    encrypted = read_json(body).get("encrypt")
    if not isinstance(encrypted, str):
        raise NotDecrypted("The event is not encrypted.")
    try:
        sealed = b64decode(encrypted, validate=True)
        return decrypt_cbc(sealed[_BLOCK:], sha256(key).digest(), sealed[:_BLOCK])
    except ValueError as exc:
        raise NotDecrypted("The event cannot be decrypted.") from exc

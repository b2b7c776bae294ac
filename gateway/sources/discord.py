"""Discord's interactions and webhook events.

https://docs.discord.com/developers/interactions/overview
https://docs.discord.com/developers/events/webhook-events
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr, field_validator

from gateway.answer import JSON, Answer
from gateway.delivery import Request
from gateway.errors import SignatureMismatch, Unverified
from gateway.sources import base
from gateway.sources.base import Draft, Example, Sample, Signed, Source, Verified
from gateway.sources.ed25519 import public_key, sign, verifies
from gateway.sources.fields import identity, name, read_if_json
from gateway.sources.signatures import check_time, digest, header, raw

SIGNATURE = "x-signature-ed25519"
TIMESTAMP = "x-signature-timestamp"
INTERACTIONS = {
    1: "PING",
    2: "APPLICATION_COMMAND",
    3: "MESSAGE_COMPONENT",
    4: "APPLICATION_COMMAND_AUTOCOMPLETE",
    5: "MODAL_SUBMIT",
}

#: Interactions, and https://docs.discord.com/developers/events/webhook-events#event-types
EVENTS = (
    *INTERACTIONS.values(),
    "APPLICATION_AUTHORIZED", "APPLICATION_DEAUTHORIZED", "ENTITLEMENT_CREATE",
    "ENTITLEMENT_DELETE", "ENTITLEMENT_UPDATE", "GAME_DIRECT_MESSAGE_*", "LOBBY_MESSAGE_*",
    "QUEST_USER_ENROLLMENT",
)  # fmt: skip

_public_key = re.compile(r"[0-9a-fA-F]{64}").fullmatch
# Lower case only, so that each signature has only one valid spelling.
_signature = re.compile(r"[0-9a-f]{128}").fullmatch


class Options(base.Options):
    """The secrets are public keys, as the developer portal shows them."""

    @field_validator("secrets")
    @classmethod
    def _keys(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        if not all(_public_key(secret.get_secret_value()) for secret in secrets):
            raise ValueError("Discord's public key is 64 hexadecimal digits")
        return secrets


class Discord(Source):
    """Signs the time and the body, with Ed25519.

    The event is the interaction's type with its name in Discord's documentation, for example
    ``APPLICATION_COMMAND``, or the webhook event's ``type``. The JSON's ``id`` and the digest of
    the body identify an interaction. A webhook event has no id; the digest identifies it. Both
    kinds of PING are answered without a task.
    """

    samples = {
        "": Sample(
            "APPLICATION_COMMAND",
            '{"id":"$id","type":2,"version":1,"data":{"id":"1","type":1,"name":"höhe"}}',
        )
    }
    example = Example(
        {"secrets": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"},
        receiver={"secrets": "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"},
        other_secret="3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29",
        proof="x-signature-ed25519",
        timed=True,
    )

    options_class = Options
    options: Options
    events = EVENTS
    deadline = 2.5
    secret_headers = frozenset([SIGNATURE])

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._keys = [
            public_key(bytes.fromhex(secret.get_secret_value())) for secret in options.secrets
        ]

    def verify(self, request: Request) -> Verified:
        timestamp = header(request, TIMESTAMP)
        check_time(timestamp, request.received_at, self.options.tolerance)
        given = header(request, SIGNATURE)
        if not _signature(given):
            raise Unverified("The signature is not 128 hexadecimal digits.")
        signed, signature = raw(timestamp) + request.body, bytes.fromhex(given)
        if not any(verifies(key, signature, signed) for key in self._keys):
            raise SignatureMismatch
        return _read(request.body)

    def sign(self, draft: Draft) -> Signed:
        seed = bytes.fromhex(self.options.secrets[0].get_secret_value())
        timestamp = str(int(draft.now))
        signature = sign(seed, timestamp.encode() + draft.body).hex()
        return Signed(draft.body, {TIMESTAMP: timestamp, SIGNATURE: signature})


def _read(body: bytes) -> Verified:
    message = read_if_json(body)
    kind, inner = message.get("type"), message.get("event")
    if isinstance(inner, dict):
        return Verified(body, digest(body), name(inner.get("type")))
    return Verified(
        body,
        identity(message.get("id"), digest(body)),
        INTERACTIONS.get(kind, name(kind)) if type(kind) is int else "",
        challenge=_pong(kind),
    )


def _pong(kind: Any) -> Answer | None:
    """Answer an interaction's PING with PONG, and a webhook event's with 204."""
    if kind == 1:
        return Answer(200, JSON, b'{"type":1}')
    return Answer(204, JSON, b"") if kind == 0 else None

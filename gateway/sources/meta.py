"""Meta: Facebook, Instagram, Messenger, WhatsApp.

https://developers.facebook.com/docs/graph-api/webhooks/getting-started
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, SecretStr

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.errors import MethodNotAllowed, Unverified
from gateway.sources import base
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.envelopes import read_query
from gateway.sources.fields import name, read_if_json
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import check, digest

#: https://developers.facebook.com/docs/graph-api/webhooks/reference: objects, with their fields.
EVENTS = (
    "ad_account", "ad_account.*", "application", "application.*", "certificate_transparency",
    "certificate_transparency.*", "commerce_merchant_settings", "commerce_merchant_settings.*",
    "instagram", "instagram.*", "page", "page.*", "payments", "payments.*", "permissions",
    "permissions.*", "threads", "threads.*", "user", "user.*", "whatsapp_business_account",
    "whatsapp_business_account.*",
)  # fmt: skip


class Options(base.Options):
    """The secrets are app secrets."""

    #: The verify token from the app's dashboard; None: handshakes are refused.
    verify_token: SecretStr | None = Field(None, min_length=1)


class Meta(HMACSource):
    """Signs the body.

    The event is the JSON's ``object`` and, where all its changes have the same ``field``, that
    field, as in ``page.feed``. Deliveries have no id; the digest of the body identifies them.
    """

    samples = {
        "": Sample(
            "page.feed",
            '{"object":"$kind","entry":[{"id":"$id","time":1700000000,'
            '"changes":[{"field":"$action"}]}]}',
        )
    }
    example = Example(
        {"secrets": "app secret", "verify_token": "chosen"},
        other_secret="App secret",
        proof="x-hub-signature-256",
        identity="",
        opaque=True,
    )

    options_class = Options
    options: Options
    events = EVENTS
    header = "x-hub-signature-256"
    prefix = b"sha256="
    deadline = 4.5
    fallback = ""
    secret_headers = frozenset([header, "x-hub-signature"])
    handshakes = True

    def handshake(self, request: Request) -> Answer:
        if self.options.verify_token is None:
            raise MethodNotAllowed(
                "This source takes no handshake: it has no verify_token.", headers={"Allow": "POST"}
            )
        query = read_query(request.query_string)
        token = self.options.verify_token.get_secret_value().encode()
        check([query.get("hub.verify_token", "").encode()], [token])
        challenge = query.get("hub.challenge", "")
        if query.get("hub.mode") != "subscribe" or not challenge:
            raise Unverified("A handshake needs hub.mode=subscribe and a hub.challenge.")
        return Answer(200, TEXT, challenge.encode())

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        return Verified(request.body, digest(request.body), _event(request.body))

    def sign(self, draft: Draft) -> Signed:
        return Signed(draft.body, self.signature(draft.body))


def _event(body: bytes) -> str:
    message = read_if_json(body)
    event = name(message.get("object"))
    fields = {name(change.get("field")) for change in _changes(message)}
    field = fields.pop() if len(fields) == 1 else ""
    return f"{event}.{field}" if field else event


def _changes(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        change
        for entry in _objects(message.get("entry"))
        for change in _objects(entry.get("changes"))
    ]


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

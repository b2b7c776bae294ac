"""Twilio. https://www.twilio.com/docs/usage/webhooks/webhooks-security"""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha256
from urllib.parse import urlsplit

from gateway.delivery import Request
from gateway.errors import BadRequest, Unverified
from gateway.sources.base import Draft, Options, Sample, Signed, Source, Verified
from gateway.sources.proofs import check, digest, header, mac, raw, secrets
from gateway.sources.reading import identity, read_form, utf8

SIGNATURE = "x-twilio-signature"
#: The header with the algorithm, if the secret is a webhook key and not the account's token;
#: https://www.twilio.com/docs/usage/webhooks/webhook-shared-keys
SETTINGS = "x-twilio-webhooks-signature-settings"
IDENTITY = "i-twilio-idempotency-token"
BODY_HASH = "bodySHA256"
ALGORITHMS = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
STATUS = ("MessageStatus", "CallStatus")


#: https://www.twilio.com/docs/messaging/guides/outbound-message-status-in-status-callbacks, and
#: https://www.twilio.com/docs/voice/api/call-resource#call-status-values
EVENTS = (
    "accepted", "scheduled", "queued", "sending", "sent", "failed", "delivered", "undelivered",
    "partially_delivered", "receiving", "received", "read", "canceled", "initiated", "ringing",
    "in-progress", "completed", "busy", "no-answer",
)  # fmt: skip


class Twilio(Source):
    """Signs the public URL and a form's fields; for any other body its digest is in the URL.

    The headers and the order of a form's fields are not signed, nor where a field's name ends and
    its value begins. The event is a form's ``MessageStatus`` or ``CallStatus``.
    ``I-Twilio-Idempotency-Token`` identifies the delivery, with the digest of what is signed: path,
    query and fields.
    """

    samples = {
        "": Sample("ringing", "CallSid=CA$id&CallStatus=$event&From=%2B4930123&To=%2B4930124&Note=")
    }

    events = EVENTS
    deadline = 14.0
    #: Twilio's markup without any instruction.
    fallback = "<Response/>"
    content_type = "text/xml"
    secret_headers = frozenset([SIGNATURE])
    needs_public_url = True

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._keys = {
            label: [hmac.new(key, digestmod=algorithm) for key in secrets(options)]
            for label, algorithm in ALGORITHMS.items()
        }
        self._urls = _with_and_without_port(public_url.rstrip("/"))

    def verify(self, request: Request) -> Verified:
        given = raw(header(request, SIGNATURE))
        algorithm = _field(request.headers.get(SETTINGS, ""), ",", "algorithm") or "HMAC_SHA1"
        keys = self._keys.get(algorithm.upper(), [])
        body_hash = _field(request.query_string, "&", BODY_HASH)
        fields = _read_form(request.body) if body_hash is None else []
        if body_hash is not None and request.method != "GET":
            check([raw(body_hash)], [sha256(request.body).hexdigest().encode()])
        of_body = [] if request.method == "GET" else fields  # those of a GET are in its URL
        rest = _signed(request.path, request.query_string, of_body)
        check([given], (b64encode(mac(key, [url, rest])) for key in keys for url in self._urls))
        status = next((value for key, value in fields if key in STATUS), "")
        key = identity(request.headers.get(IDENTITY, ""), digest(rest))
        return Verified(request.body, key, utf8(status))

    def sign(self, draft: Draft) -> Signed:
        url = urlsplit(draft.url)
        query, added, fields = url.query, {}, []
        if draft.body[:1] in (b"{", b"["):
            added[BODY_HASH] = sha256(draft.body).hexdigest()
            query += f"{'&' if query else ''}{BODY_HASH}={added[BODY_HASH]}"
        else:
            fields = read_form(draft.body)
        signed = [self._urls[0], _signed(url.path or "/", query, fields)]
        headers = {SIGNATURE: b64encode(mac(self._keys["HMAC_SHA1"][0], signed)).decode()}
        if draft.identity:
            headers[IDENTITY] = draft.identity
        return Signed(draft.body, headers, added)


def _read_form(body: bytes) -> list[tuple[str, str]]:
    try:
        fields = read_form(body)
    except BadRequest as exc:  # a form that cannot be read cannot have been signed
        raise Unverified("The form cannot be read.") from exc
    # Twilio writes one in each field; without it the same text would be all name.
    if any(field and b"=" not in field for field in body.split(b"&")):
        raise Unverified("A field of the form has no equals sign.")
    return fields


def _signed(path: str, query: str, fields: list[tuple[str, str]]) -> bytes:
    """Return the signed bytes after the URL's host; equal fields with equal values count once."""
    texts = [f"{path}?{query}" if query else path]
    texts += [key + value for key, value in sorted(set(fields))]
    return raw("".join(texts))


def _field(text: str, separator: str, name: str) -> str | None:
    """Return the value of the first field `name=value` of a text; None: it has none."""
    fields = (each.strip().partition("=") for each in text.split(separator))
    return next((value for key, _, value in fields if key == name), None)


def _with_and_without_port(url: str) -> list[bytes]:
    """Return the URL with and without its port: Twilio signs sometimes one, sometimes the other."""
    parts = urlsplit(url)
    if parts.port is not None:
        netloc = parts.netloc.rpartition(":")[0]
    else:
        netloc = f"{parts.netloc}:{80 if parts.scheme == 'http' else 443}"
    return [raw(url), raw(parts._replace(netloc=netloc).geturl())]

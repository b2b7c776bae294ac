"""X, formerly Twitter. https://docs.x.com/x-api/webhooks/quickstart"""

from __future__ import annotations

import json
import re

from gateway.answer import JSON, Answer
from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.envelopes import read_query
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import digest, raw

# A handshake makes the gateway sign a token with the key that also signs bodies. So no token may be
# a valid body, which is a JSON object.
_token = re.compile(rb"[A-Za-z0-9._~+/=-]{1,512}").fullmatch


class X(HMACSource):
    """Signs the body; a body that could also be a handshake's token is refused.

    There is no event. Deliveries have no id; the digest of the body identifies them.
    """

    samples = {
        "": Sample(
            "", '{"for_user_id":"1","tweet_create_events":[{"id_str":"$id","text":"hello"}]}'
        )
    }
    example = Example(
        {"secrets": "consumer secret"},
        other_secret="consumer_secret",
        proof="x-twitter-webhooks-signature",
        identity="",
    )

    events = ()
    header = "x-twitter-webhooks-signature"
    prefix = b"sha256="
    encoding = "base64"
    deadline = 9.0
    fallback = ""
    secret_headers = frozenset([header])
    handshakes = True

    def handshake(self, request: Request) -> Answer:
        token = raw(read_query(request.query_string).get("crc_token", ""))
        if not _token(token):
            raise Unverified("A handshake needs a crc_token.")
        body = json.dumps({"response_token": self.signature(token)[self.header]})
        return Answer(200, JSON, body.encode())

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        if _token(request.body):
            raise Unverified("The body could be a handshake's token.")
        return Verified(request.body, digest(request.body))

    def sign(self, draft: Draft) -> Signed:
        return Signed(draft.body, self.signature(draft.body))

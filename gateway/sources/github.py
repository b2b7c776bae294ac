"""GitHub. https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""

from __future__ import annotations

import re

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import name, read_form, read_if_json
from gateway.sources.hmac_source import HMACSource

# Payloads are large, and begin with the action where they have one, so they need not be parsed.
_action = re.compile(rb'\{"action":"([a-z_]{1,100})"').match


class GitHub(HMACSource):
    """Signs the body.

    The headers are not signed. The event is ``X-GitHub-Event`` and, where the body has one, its
    ``action``, as in ``issues.opened``; ``X-GitHub-Delivery`` identifies the delivery.
    """

    samples = {
        "": Sample(
            "issues.opened", '{"action":"$action","issue":{"id":$id,"number":1,"title":"größe"}}'
        )
    }
    example = Example(
        {"secrets": "It's a Secret to Everybody"},
        other_secret="It's a Secret to Nobody",
        proof="x-hub-signature-256",
        opaque=True,
    )

    header = "x-hub-signature-256"
    prefix = b"sha256="
    deadline = 9.0
    secret_headers = frozenset([header, "x-hub-signature"])

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        event = request.headers.get("x-github-event", "")
        if event and (action := _read_action(request.body)):
            event = f"{event}.{action}"
        return Verified(request.body, request.headers.get("x-github-delivery", ""), event)

    def sign(self, draft: Draft) -> Signed:
        headers = self.signature(draft.body)
        if draft.event:
            headers["x-github-event"] = draft.event.partition(".")[0]
        if draft.identity:
            headers["x-github-delivery"] = draft.identity
        return Signed(draft.body, headers)


def _read_action(body: bytes) -> str:
    """Return the action of a payload, which may be JSON or a form; empty where it has none."""
    if body.startswith(b"payload="):
        body = read_form(body)[0][1].encode("latin-1")
    if found := _action(body):
        return found[1].decode()
    return name(read_if_json(body).get("action")) if b'"action"' in body else ""

"""Shopify. https://shopify.dev/docs/apps/build/webhooks/subscribe/https"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.hmac_source import HMACSource


class Shopify(HMACSource):
    """Signs the body.

    The headers are not signed. The event is ``X-Shopify-Topic``, for example ``orders/create``;
    ``X-Shopify-Event-Id`` identifies the delivery.
    """

    samples = {"": Sample("orders/create", '{"id":$id,"currency":"EUR","total_price":"12.00"}')}
    example = Example(
        {"secrets": "Convoy"}, other_secret="convoy", proof="x-shopify-hmac-sha256", opaque=True
    )

    header = "x-shopify-hmac-sha256"
    encoding = "base64"
    deadline = 4.5
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        headers = request.headers
        return Verified(
            request.body,
            headers.get("x-shopify-event-id", ""),
            headers.get("x-shopify-topic", ""),
        )

    def sign(self, draft: Draft) -> Signed:
        headers = self.signature(draft.body)
        if draft.event:
            headers["x-shopify-topic"] = draft.event
        if draft.identity:
            headers["x-shopify-event-id"] = draft.identity
        return Signed(draft.body, headers)

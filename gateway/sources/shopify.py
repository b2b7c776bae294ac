"""Shopify. https://shopify.dev/docs/apps/build/webhooks/subscribe/https"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import identity
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import digest


class Shopify(HMACSource):
    """Signs the body.

    The headers are not signed; the newer ones have no ``X-``. The event is ``X-Shopify-Topic``, for
    example ``orders/create``. Topics share ``X-Shopify-Event-Id``: with ``X-Shopify-Webhook-Id``,
    the shop, the topic and the digest of the body it identifies the delivery.
    """

    samples = {"": Sample("orders/create", '{"id":$id,"currency":"EUR","total_price":"12.00"}')}
    example = Example(
        {"secrets": "Convoy"}, other_secret="convoy", proof="x-shopify-hmac-sha256", opaque=True
    )

    header = "x-shopify-hmac-sha256"
    other_header = "shopify-hmac-sha256"
    encoding = "base64"
    deadline = 4.5
    secret_headers = frozenset([header, other_header])

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        event_id, webhook_id, shop, topic = (
            request.headers.get(f"x-shopify-{name}") or request.headers.get(f"shopify-{name}", "")
            for name in ("event-id", "webhook-id", "shop-domain", "topic")
        )
        key = event_id or webhook_id
        return Verified(
            request.body, identity(key, webhook_id, shop, topic, digest(request.body)), topic
        )

    def sign(self, draft: Draft) -> Signed:
        headers = self.signature(draft.body)
        if draft.event:
            headers["x-shopify-topic"] = draft.event
        if draft.identity:
            headers["x-shopify-event-id"] = draft.identity
        return Signed(draft.body, headers)

"""Shopify. https://shopify.dev/docs/apps/build/webhooks/subscribe/https"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import identity
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import digest

#: https://shopify.dev/docs/api/webhooks: the topics of usual resources, and the other resources.
EVENTS = (
    "app/scopes_update", "app/uninstalled", "app_purchases_one_time/*", "app_subscriptions/*",
    "audit_events/*", "bulk_operations/*", "carts/create", "carts/update", "channels/*",
    "checkout_and_accounts_configurations/*", "checkouts/create", "checkouts/delete",
    "checkouts/update", "collection_listings/*", "collection_publications/*", "collections/create",
    "collections/delete", "collections/update", "companies/*", "company_contact_roles/*",
    "company_contacts/*", "company_locations/*", "customer.*", "customer_account_settings/*",
    "customer_groups/*", "customer_payment_methods/*", "customers/create", "customers/data_request",
    "customers/delete", "customers/disable", "customers/enable", "customers/merge",
    "customers/purchasing_summary", "customers/redact", "customers/update",
    "customers_email_marketing_consent/*", "customers_marketing_consent/*",
    "delivery_promise_settings/*", "discounts/*", "disputes/*", "domains/*", "draft_orders/create",
    "draft_orders/delete", "draft_orders/update", "finance_app_staff_member/*",
    "finance_kyc_information/*", "fulfillment_events/*", "fulfillment_holds/*",
    "fulfillment_orders/*", "fulfillments/create", "fulfillments/update", "inventory_items/create",
    "inventory_items/delete", "inventory_items/update", "inventory_levels/connect",
    "inventory_levels/disconnect", "inventory_levels/update", "inventory_shipments/*",
    "inventory_transfers/*", "locales/*", "locations/activate", "locations/create",
    "locations/deactivate", "locations/delete", "locations/update", "markets/*",
    "metafield_definitions/*", "metaobjects/*", "order_transactions/*", "orders/cancelled",
    "orders/create", "orders/delete", "orders/edited", "orders/fulfilled", "orders/link_requested",
    "orders/paid", "orders/partially_fulfilled", "orders/risk_assessment_changed",
    "orders/shopify_protect_eligibility_changed", "orders/updated", "payment_schedules/*",
    "payment_terms/*", "product_feeds/*", "product_listings/*", "product_publications/*",
    "products/create", "products/delete", "products/update", "profiles/*", "publications/*",
    "refunds/create", "returns/*", "reverse_deliveries/*", "reverse_fulfillment_orders/*",
    "scheduled_product_listings/*", "segments/*", "selling_plan_groups/*", "shop/redact",
    "shop/update", "subscription_billing_attempts/*", "subscription_billing_cycle_edits/*",
    "subscription_billing_cycles/*", "subscription_contracts/*", "tax_partners/*", "tax_services/*",
    "tax_summaries/*", "tender_transactions/*", "themes/create", "themes/delete", "themes/publish",
    "themes/update", "variants/*",
)  # fmt: skip


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

    events = EVENTS
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

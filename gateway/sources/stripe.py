"""Stripe. https://docs.stripe.com/webhooks#verify-manually"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import identity, name, read_if_json
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import check, check_time, header, mac, raw

#: https://docs.stripe.com/api/events/types, by what they are about.
EVENTS = (
    "account.*", "application_fee.*", "balance.*", "balance_settings.*", "billing.*",
    "billing_portal.*", "capability.*", "cash_balance.*", "charge.*", "checkout.*", "climate.*",
    "coupon.*", "credit_note.*", "customer.*", "customer_cash_balance_transaction.*",
    "entitlements.*", "file.*", "financial_connections.*", "identity.*", "invoice.*",
    "invoice_payment.*", "invoiceitem.*", "issuing_authorization.*", "issuing_card.*",
    "issuing_cardholder.*", "issuing_dispute.*", "issuing_personalization_design.*",
    "issuing_settlement.*", "issuing_token.*", "issuing_transaction.*", "mandate.*", "order.*",
    "payment_intent.*", "payment_link.*", "payment_method.*", "payment_record.*", "payout.*",
    "person.*", "plan.*", "price.*", "product.*", "promotion_code.*", "quote.*", "radar.*",
    "recipient.*", "refund.*", "reporting.*", "reserve.*", "review.*", "setup_intent.*", "sigma.*",
    "sku.*", "source.*", "subscription_schedule.*", "tax.*", "tax_rate.*", "terminal.*",
    "test_helpers.*", "topup.*", "transfer.*", "treasury.*", "v1.*", "v2.*",
)  # fmt: skip


class Stripe(HMACSource):
    """Signs the time and the body; while a secret is replaced, with both secrets.

    The event is the JSON's ``type``. Its ``id`` identifies the delivery, with its type, the account
    or context, the mode and the API's version, which endpoints differ in. Its body is not the same
    in each try, as it has ``pending_webhooks``.
    """

    samples = {
        "": Sample(
            "charge.succeeded",
            '{"id":"$id","object":"event","type":"$event","created":$time,"data":{"object":{}}}',
        )
    }
    example = Example(
        {"secrets": "whsec_test_secret"},
        other_secret="whsec_test_secret2",
        proof="stripe-signature",
        timed=True,
    )

    events = EVENTS
    header = "stripe-signature"
    deadline = 9.0
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        # t=1700000000,v1=<hex>,v1=<hex>,v0=<hex>: other versions than v1 are ignored.
        fields = [field.partition("=") for field in header(request, self.header).split(",")]
        times = [value for key, _, value in fields if key == "t"]
        if len(times) != 1:
            raise Unverified(f"The header {self.header} needs exactly one t.")
        check_time(times[0], request.received_at, self.options.tolerance)
        signed = (times[0].encode(), b".", request.body)
        given = [raw(value) for key, _, value in fields if key == "v1"]
        check(given, (self._encode(mac(key, signed)) for key in self._keys))
        event = read_if_json(request.body)
        apart = (event.get(name) for name in ("type", "account", "context", "api_version"))
        mode = str(event.get("livemode"))
        return Verified(
            request.body, identity(event.get("id"), *apart, mode), name(event.get("type"))
        )

    def sign(self, draft: Draft) -> Signed:
        timestamp = str(int(draft.now))
        signature = self.signature(timestamp.encode(), b".", draft.body)[self.header]
        return Signed(draft.body, {self.header: f"t={timestamp},v1={signature}"})

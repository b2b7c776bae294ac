"""Telegram's bots. https://core.telegram.org/bots/api#setwebhook"""

from __future__ import annotations

import re

from pydantic import SecretStr, field_validator

from gateway.delivery import Request
from gateway.sources import base
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.bearer import BearerSource
from gateway.sources.fields import identity, name, read_if_json
from gateway.sources.signatures import digest

_token = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch


class Options(base.Options):
    """The secrets are the ``secret_token`` of setWebhook."""

    @field_validator("secrets")
    @classmethod
    def _tokens(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        if not all(_token(secret.get_secret_value()) for secret in secrets):
            raise ValueError("a Telegram secret has 1 to 256 letters, digits, `_` and `-`")
        return secrets


#: https://core.telegram.org/bots/api#update
EVENTS = (
    "message", "edited_message", "channel_post", "edited_channel_post", "business_connection",
    "business_message", "edited_business_message", "deleted_business_messages", "message_reaction",
    "message_reaction_count", "inline_query", "chosen_inline_result", "callback_query",
    "shipping_query", "pre_checkout_query", "purchased_paid_media", "poll", "poll_answer",
    "my_chat_member", "chat_member", "chat_join_request", "chat_boost", "removed_chat_boost",
)  # fmt: skip


class Telegram(BearerSource):
    """Signs nothing: ``X-Telegram-Bot-Api-Secret-Token`` is the secret.

    The event is the update's kind, for example ``message``. The ``update_id``, which is unique for
    one bot only, and the digest of the body identify it.
    """

    samples = {
        "": Sample(
            "message",
            '{"update_id":$id,"$event":{"message_id":1,"date":1700000000,'
            '"chat":{"id":1,"type":"private"},"text":"hello"}}',
        )
    }
    example = Example(
        {"secrets": "A-secret_token"},
        other_secret="A-secret_tokem",
        proof="x-telegram-bot-api-secret-token",
    )

    options_class = Options
    options: Options
    events = EVENTS
    header = "x-telegram-bot-api-secret-token"
    deadline = 55.0
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        self.check(request)
        update = read_if_json(request.body)
        # An update has its id and at most one other field.
        kind = next((key for key in update if key != "update_id"), "")
        key = identity(update.get("update_id"), digest(request.body))
        return Verified(request.body, key, name(kind))

    def sign(self, draft: Draft) -> Signed:
        return Signed(draft.body, self.token())

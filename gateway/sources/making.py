"""Make the classes of the sources that are blocks of data: from a file, or from `gateway.toml`."""

from __future__ import annotations

import re
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import Field, SecretStr, create_model, field_validator, model_validator

from gateway.answer import TEXT
from gateway.sources.base import Options, Sample, Source
from gateway.sources.block import Block
from gateway.sources.block_keys import keys_of, texts_of
from gateway.sources.declared import Declared

#: What a source may have whose sender's handshake has a token; None: handshakes are refused.
_VERIFY_TOKEN = (SecretStr | None, Field(None, min_length=1))


def source_of(name: str, table: dict[str, Any]) -> type[Source]:
    """Return the class of a sender from the table in its file."""
    block = Block.model_validate(table)

    def usable(_cls: Any, secrets: list[SecretStr]) -> list[SecretStr]:
        return _usable(secrets, block)

    token = any(each.token or "{token}" in each.sha256 for each in block.handshakes)
    checks: dict[str, Any] = {"_usable": field_validator("secrets")(classmethod(usable))}
    fields: dict[str, Any] = {"verify_token": _VERIFY_TOKEN} if token else {}
    if "{audience}" in block.require.values():
        fields["audience"] = (str, "")
    fields["tolerance"] = (float, Field(block.tolerance, ge=0))
    options = create_model(
        "Options",
        __base__=Options,
        __validators__=checks,
        **fields,
    )
    return _class(name, block, options)


def _usable(secrets: list[SecretStr], block: Block) -> list[SecretStr]:
    """Return `secrets`. Raises ValueError, with what would be valid, where one is of no use."""
    texts = texts_of([secret.get_secret_value() for secret in secrets], block)
    for secret in secrets:
        if block.secret_form and not re.fullmatch(block.secret_form[0], secret.get_secret_value()):
            raise ValueError(block.secret_form[1])
        keys_of(secret.get_secret_value(), block, texts)
    return secrets


class Own(Options, Block):
    """A sender of one's own: the table of the source is the block."""

    scheme: Literal["hmac"] = "hmac"
    verify_token: SecretStr | None = Field(None, min_length=1)
    #: What ``{audience}`` stands for; the URL if it is empty.
    audience: str = ""

    @model_validator(mode="after")
    def _keys(self) -> Own:
        try:
            _usable(self.secrets, self)
        except ValueError as exc:
            raise ValueError(f"secrets: {exc}") from exc
        return self

    @cached_property
    def source(self) -> type[Source]:
        """The class of this source."""
        return _class("hmac", self, Own)


@cache
def own() -> type[Source]:
    """Return the class of the scheme `hmac`, whose sources are blocks of their own."""
    return _class(
        "hmac", Block.model_validate({"signature": "header:X-Signature", "id": "header:X-Id"}), Own
    )


def _class(name: str, block: Block, options: type[Options]) -> type[Source]:
    """Return the class of the source that `block` describes."""
    values = {
        "block": block,
        "options_class": options,
        "samples": {key: Sample(each.event, each.body) for key, each in block.samples.items()},
        "content_type": block.content_type or TEXT,
        "identifies": bool(block.identity or block.id),
        "handshakes": tuple({h.method: 0 for h in block.handshakes if h.method != "POST"}),
        "methods": tuple(block.methods),
        "needs_public_url": any(text.startswith("url") for text in block.signed_places),
    }
    habits = ("deadline", "tries", "retry_after", "fallback", "max_body")
    return type(name or "Own", (Declared,), values | {key: getattr(block, key) for key in habits})

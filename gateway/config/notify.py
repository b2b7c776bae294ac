"""Who is told of failures: the table `[notify]`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic import model_validator as validator

from gateway.model import Model
from gateway.sources import find
from gateway.sources.base import Source

_SCHEMES = {"email": ("smtps", "smtp")}


class Notify(Model):
    """Where messages about failures go, and when."""

    kind: Literal["webhook", "slack", "wecom", "dingtalk", "email"]
    """`webhook`: JSON, signed as [Standard Webhooks](sources.md#standard) are; `slack`, `wecom`,
    `dingtalk`: the incoming webhook of a channel, or a group's robot; `email`"""
    url: SecretStr
    """where the message is posted; it may be a private address. For `email`
    `smtps://user@host:465?from=a@example.com&to=b@example.com`, where `to` may be given several
    times; with smtp:// STARTTLS is used where the server has it, and needed for a
    password. A mail server has 10 seconds for a message"""
    secret: SecretStr | None = Field(None, min_length=1)
    """`webhook`: signs the message: base64, with or without `whsec_` before it; `dingtalk`: the
    robot's, if it checks signatures; `email`: the password of the URL's user"""
    share: float | None = Field(None, gt=0, le=1)
    """(default: off) a message when this share of a route's deliveries of ten minutes has failed, 0
    to 1; not with fewer than 20 deliveries"""
    every: float = Field(300.0, ge=1, le=86_400)
    """seconds between two messages: one has all that has come meanwhile"""

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        text, kind = url.get_secret_value(), info.data.get("kind", "")
        schemes = _SCHEMES.get(kind, ("https", "http"))
        try:
            parts = urlsplit(text)
            well = parts.scheme in schemes and parts.hostname and parts.port != 0
        except ValueError:
            well = False
        if not well or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError(f"write {schemes[0]}://HOST..., in ASCII")
        if kind != "email":
            return url
        query = parse_qs(parts.query)
        addresses = [*query.get("from", []), *query.get("to", [])]
        well = {"from", "to"} == query.keys() and len(query["from"]) == 1
        if not well or not all("@" in each and each.isprintable() for each in addresses):
            raise ValueError("write smtps://HOST?from=ADDRESS&to=ADDRESS")
        return url

    @validator(mode="after")
    def _secret(self) -> Notify:
        if self.kind == "webhook":
            if not self.key:
                raise ValueError("secret: is needed, as it signs the message")
            try:
                _ = self.signer  # made once; it says what is wrong with the secret
            except ValidationError as exc:
                problem = exc.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"secret: {problem}") from None
        elif self.key and self.kind in ("slack", "wecom"):
            raise ValueError(f"secret: {self.kind} has none: its URL is the secret")
        return self

    @property
    def key(self) -> str:
        """The secret as a text; empty where there is none."""
        return self.secret.get_secret_value() if self.secret else ""

    @cached_property
    def signer(self) -> Source:
        """What signs a webhook's message."""
        source = find("standard")
        return source(source.options_class(scheme="standard", secrets=[SecretStr(self.key)]))

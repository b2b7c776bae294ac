"""The table of schemes for sources; a scheme's module is imported when it is used."""

from __future__ import annotations

from importlib import import_module

from gateway.sources.base import Source

SCHEMES = {
    "dingtalk": "gateway.sources.dingtalk:DingTalk",
    "discord": "gateway.sources.discord:Discord",
    "feishu": "gateway.sources.feishu:Feishu",
    "github": "gateway.sources.github:GitHub",
    "gitlab": "gateway.sources.gitlab:GitLab",
    "hmac": "gateway.sources.generic:GenericHMAC",
    "meta": "gateway.sources.meta:Meta",
    "shopify": "gateway.sources.shopify:Shopify",
    "slack": "gateway.sources.slack:Slack",
    "standard": "gateway.sources.standard:Standard",
    "stripe": "gateway.sources.stripe:Stripe",
    "telegram": "gateway.sources.telegram:Telegram",
    "twilio": "gateway.sources.twilio:Twilio",
    "wechat": "gateway.sources.wechat:WeChat",
    "wecom": "gateway.sources.wecom:WeCom",
    "x": "gateway.sources.x:X",
}


def find(scheme: str) -> type[Source]:
    """Return the class for the name in a source's `scheme`."""
    module, _, name = SCHEMES[scheme].partition(":")
    found: type[Source] = getattr(import_module(module), name)
    return found

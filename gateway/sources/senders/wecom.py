"""WeCom, also called WeChat Work.

https://developer.work.weixin.qq.com/document/path/90930
https://developer.work.weixin.qq.com/document/path/101033
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.sources.base import Draft, Signed, as_list
from gateway.sources.senders.wechat import WeChat
from gateway.sources.wechat_crypto import CryptoOptions, Sealed
from gateway.sources.wechat_message import SAMPLES


class Options(CryptoOptions):
    """The secrets are tokens, and `receive_id` is the corp id.

    For a third party's callbacks it is the suite id, for an intelligent robot "".
    """

    aes_key: Annotated[list[SecretStr], BeforeValidator(as_list), Field(min_length=1)]


class WeCom(WeChat):
    """Signs and encrypts everything, also the handshake, and is otherwise like WeChat.

    An intelligent robot's messages are JSON; what a task returns for one is the robot's own
    JSON object.
    """

    samples = SAMPLES

    options_class = Options

    @property
    def covers_body(self) -> bool:
        return True

    def handshake(self, request: Request) -> Answer:
        query = self._crypto.parameters(request)
        opened = self._crypto.open(query.get("msg_signature", ""), query, query.get("echostr", ""))
        return Answer(200, TEXT, opened.message)

    def _reply(self, sealed: Sealed, as_json: bool) -> dict[str, Any]:
        fields = super()._reply(sealed, as_json)
        return {name.lower(): value for name, value in fields.items()} if as_json else fields

    def sign(self, draft: Draft) -> Signed:
        signed = super().sign(draft)
        for name in ("signature", "encrypt_type"):
            del signed.query[name]
        return signed

"""WeChat: official accounts, mini programs, third-party platforms.

https://developers.weixin.qq.com/doc/offiaccount/Basic_Information/Access_Overview.html
https://developers.weixin.qq.com/doc/oplatform/developers/dev/push/encryption.html
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gateway.answer import JSON, TEXT, Answer
from gateway.delivery import Request
from gateway.errors import NotDecrypted
from gateway.sources import wechat_crypto, wechat_message
from gateway.sources.base import Draft, Signed, Source, Verified
from gateway.sources.proofs import digest
from gateway.sources.reading import check_flat, name
from gateway.sources.wechat_crypto import CryptoOptions, MessageCrypto, Opened, Sealed
from gateway.sources.wechat_message import XML, Message, looks_like_json, passive_reply, render

#: The MsgTypes, and the InfoTypes of what third parties get, of WeChat and WeCom.
EVENTS = (
    "text", "image", "voice", "video", "shortvideo", "location", "link", "miniprogrampage", "file",
    "mixed", "stream", "music", "event", "event.*", "authorized", "cancel_auth", "change_auth",
    "change_contact", "component_verify_ticket", "create_auth", "notify_third_*",
    "reset_permanent_code", "share_*", "suite_ticket", "unauthorized", "updateauthorized",
)  # fmt: skip


class Options(CryptoOptions):
    """The secrets are tokens, and `receive_id` is the app id."""

    #: Accept plain messages as well as encrypted ones, for changing from one mode to the other.
    plain: bool = False


@dataclass(slots=True, frozen=True)
class Context:
    """Data for a reply: the message and, if it was encrypted, its token and key."""

    message: Message
    opened: Opened | None


class WeChat(Source):
    """Signs the message, if it is encrypted. There are three modes:

    - Safe: the message is encrypted, and ``msg_signature`` covers it. With an `aes_key` all
      messages have to be encrypted, unless `plain` is set.
    - Plain, without an `aes_key`: ``signature`` covers the time, but not the body.
    - Compatible: the body has the message both plain and encrypted; only the encrypted one is used.

    ``signature`` is sent in every mode, and is checked before the body is read. Where it is left
    out, the body is read first, to find the cipher text that ``msg_signature`` covers.

    The event is the MsgType, or for events ``event.`` and the Event, all in lower case. A message
    or an event is identified by the digest of all that it says, decrypted. Its MsgId does not
    suffice: users who speak at once have got one and the same. Each try repeats the whole message,
    but encrypts it anew.
    """

    samples = wechat_message.SAMPLES

    options_class: ClassVar[type[CryptoOptions]] = Options
    options: CryptoOptions
    events = EVENTS
    deadline = 4.5
    tries = 3
    retry_after = 5.0
    fallback = "success"
    content_type = XML
    handshakes = ("GET",)

    def __init__(self, options: CryptoOptions, public_url: str = ""):
        super().__init__(options, public_url)
        self._crypto = MessageCrypto(options)
        self._plain = isinstance(options, Options) and options.plain

    @property
    def covers_body(self) -> bool:
        return bool(self._crypto.keys) and not self._plain

    def handshake(self, request: Request) -> Answer:
        query = self._crypto.parameters(request)
        self._crypto.signed(query.get("signature", ""), query)
        return Answer(200, TEXT, query.get("echostr", "").encode())

    def verify(self, request: Request) -> Verified:
        query = self._crypto.parameters(request)
        if "signature" in query or "msg_signature" not in query:
            self._crypto.signed(query.get("signature", ""), query)
        else:
            check_flat(request.body)
        message, body, opened = Message.read(request.body), request.body, None
        encrypted = message.get("encrypt")
        if encrypted and self._crypto.keys:
            opened = self._crypto.open(query.get("msg_signature", ""), query, encrypted)
            message, body = Message.read(opened.message), opened.message
        elif encrypted:
            raise NotDecrypted("The message is encrypted, and the source has no aes_key.")
        elif self.covers_body or "signature" not in query:
            raise NotDecrypted("The message is not encrypted.")
        return Verified(
            body,
            identity=digest(body),
            event=message.event,
            account=(opened and opened.receive_id) or name(message.get("tousername")),
            context=Context(message, opened),
        )

    def reply(self, answer: Answer, verified: Verified, now: float) -> Answer:
        if answer.body in (b"", b"success"):
            return replace(answer, content_type=TEXT if answer.body else "")
        message, opened = verified.context.message, verified.context.opened
        body = passive_reply(answer, message, now)
        if opened is not None:
            sealed = wechat_crypto.seal(replace(opened, message=body), str(int(now)))
            body = render(self._reply(sealed, message.is_json), message.is_json)
        return replace(answer, content_type=JSON if message.is_json else XML, body=body)

    def _reply(self, sealed: Sealed, as_json: bool) -> dict[str, Any]:
        """Return the fields of an encrypted reply."""
        return {
            "Encrypt": sealed.encrypted,
            "MsgSignature": sealed.signature,
            "TimeStamp": int(sealed.timestamp),
            "Nonce": sealed.nonce,
        }

    def sign(self, draft: Draft) -> Signed:
        as_json = looks_like_json(draft.body)
        headers = {"content-type": JSON if as_json else XML}
        timestamp, nonce = str(int(draft.now)), wechat_crypto.new_nonce()
        body, safe = draft.body, {}
        if self._crypto.keys:
            sealed = self._crypto.seal(draft.body, timestamp)
            nonce = sealed.nonce
            safe = {"encrypt_type": "aes", "msg_signature": sealed.signature}
            body = render({"Encrypt": sealed.encrypted}, as_json)
        signature = wechat_crypto.signature(self._crypto.tokens[0], timestamp, nonce)
        query = {"signature": signature, "timestamp": timestamp, "nonce": nonce, **safe}
        return Signed(body, headers, query)

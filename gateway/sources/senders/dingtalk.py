"""DingTalk: events of an app, or messages to a robot.

https://open.dingtalk.com/document/orgapp/configure-event-subcription
https://open.dingtalk.com/document/isvapp/receive-message
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from hmac import HMAC
from typing import Any

from pydantic import model_validator

from gateway.answer import JSON, Answer
from gateway.delivery import Request
from gateway.errors import NotDecrypted, SignatureMissing
from gateway.sources import wechat_crypto
from gateway.sources.base import Draft, Sample, Signed, Source, Verified
from gateway.sources.proofs import check, check_time, digest, header, raw, secrets
from gateway.sources.reading import check_flat, identity, name, read_if_json, read_json
from gateway.sources.wechat_crypto import CryptoOptions, MessageCrypto, Opened

#: Events that only test the URL.
_CHECKS = frozenset(["check_url", "check_create_suite_url", "check_update_suite_url"])


class Options(CryptoOptions):
    """With `aes_key` the source accepts events, without it a robot's messages.

    For events the secrets are tokens, and `receive_id` is the app key, the corp id or the suite
    key. For a robot the secrets are app secrets.
    """

    @model_validator(mode="before")
    @classmethod
    def _an_hour_for_robots(cls, values: Any) -> Any:
        robot = isinstance(values, dict) and not values.get("aes_key")
        return {"tolerance": 3600, **values} if robot else values


class DingTalk(Source):
    """Signs and encrypts events as WeChat does; for a robot's messages it signs only the time.

    An event is answered with an encrypted ``success``, whatever the task returns. The event's name
    is its EventType. Its ``eventId``, its type and its corp identify it, or else the digest of its
    body. For a robot's message these are its ``msgtype``, and its ``msgId``, conversation and
    sender, which are not signed.
    """

    samples = {
        "": Sample(
            "user_add_org",
            '{"EventType":"$event","eventId":"$id","TimeStamp":$time,"UserId":["größe"]}',
        ),
        "text": Sample(
            "text",
            '{"msgtype":"text","msgId":"$id","text":{"content":"hello"},"robotCode":"robot"}',
        ),
    }

    options_class = Options
    options: Options
    deadline = 1.2
    fallback = "success"
    secret_headers = frozenset(["sign"])

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._crypto = MessageCrypto(options, milliseconds=True)
        self._secrets = secrets(options)

    @property
    def covers_body(self) -> bool:
        return bool(self._crypto.keys)

    def verify(self, request: Request) -> Verified:
        return self._event(request) if self._crypto.keys else self._message(request)

    def _event(self, request: Request) -> Verified:
        query = self._crypto.parameters(request)
        given = [query[key] for key in ("signature", "msg_signature") if key in query]
        if not given:
            raise SignatureMissing("The parameter signature is missing.")
        check_flat(request.body)
        encrypted = read_json(request.body).get("encrypt")
        if not isinstance(encrypted, str):
            raise NotDecrypted("The event is not encrypted.")
        for proof in given[1:]:
            self._crypto.signed(proof, query, encrypted)
        opened = self._crypto.open(given[0], query, encrypted)
        event = read_if_json(opened.message)
        kind = name(event.get("EventType"))
        challenge = None
        if kind in _CHECKS:
            word = name(event.get("Random")) or "success"
            challenge = _seal(word, opened, request.received_at)
        return Verified(
            opened.message,
            identity=identity(event.get("eventId"), event.get("EventType"), event.get("CorpId"))
            or digest(opened.message),
            event=kind,
            account=opened.receive_id,
            challenge=challenge,
            context=opened,
        )

    def _message(self, request: Request) -> Verified:
        timestamp = header(request, "timestamp")
        check_time(timestamp[:-3], request.received_at, self.options.tolerance)
        check([raw(header(request, "sign"))], (_sign(key, timestamp) for key in self._secrets))
        message = read_if_json(request.body)
        said_by = (message.get("conversationId"), message.get("senderId"))
        return Verified(
            request.body,
            identity=identity(message.get("msgId"), *said_by) or digest(request.body),
            event=name(message.get("msgtype")),
            account=name(message.get("robotCode")),
        )

    def reply(self, answer: Answer, verified: Verified, now: float) -> Answer:
        return _seal("success", verified.context, now) if verified.context else answer

    def sign(self, draft: Draft) -> Signed:
        timestamp, headers = str(int(draft.now * 1000)), {"content-type": JSON}
        if not self._crypto.keys:
            sign = _sign(self._secrets[0], timestamp).decode()
            return Signed(draft.body, {**headers, "timestamp": timestamp, "sign": sign})
        sealed = self._crypto.seal(draft.body, timestamp)
        query = {"msg_signature": sealed.signature, "timestamp": timestamp, "nonce": sealed.nonce}
        return Signed(json.dumps({"encrypt": sealed.encrypted}).encode(), headers, query)


def _sign(secret: bytes, timestamp: str) -> bytes:
    return b64encode(HMAC(secret, raw(timestamp) + b"\n" + secret, sha256).digest())


def _seal(word: str, opened: Opened, now: float) -> Answer:
    """Return the answer `word`, encrypted with the event's key."""
    sealed = wechat_crypto.seal(replace(opened, message=word.encode()), str(int(now * 1000)))
    fields = {
        "msg_signature": sealed.signature,
        "timeStamp": sealed.timestamp,
        "nonce": sealed.nonce,
        "encrypt": sealed.encrypted,
    }
    return Answer(200, JSON, json.dumps(fields).encode())

"""A small body as each sender sends it, for `gateway send` without ``--data``."""

from __future__ import annotations

from string import Template
from typing import NamedTuple


class Sample(NamedTuple):
    """``body`` has the placeholders ``$id``, ``$time`` (seconds since the epoch), ``$token`` (a
    secret that some senders write into the body), ``$event``, and ``$kind`` and ``$action``:
    what stands before and after the event's first dot."""

    event: str
    body: str


_MESSAGE = (
    "<xml><ToUserName><![CDATA[gh_gateway]]></ToUserName>"
    "<FromUserName><![CDATA[o_sender]]></FromUserName>"
    "<CreateTime>$time</CreateTime><MsgType><![CDATA[$kind]]></MsgType>"
)

SAMPLES = {
    "dingtalk": Sample(
        "user_add_org",
        '{"EventType":"$event","eventId":"$id","TimeStamp":$time,"UserId":["manager1"]}',
    ),
    "dingtalk text": Sample(
        "text", '{"msgtype":"text","msgId":"$id","text":{"content":"hello"},"robotCode":"robot"}'
    ),
    "discord": Sample(
        "APPLICATION_COMMAND",
        '{"id":"$id","type":2,"version":1,"data":{"id":"1","type":1,"name":"hello"}}',
    ),
    "feishu": Sample(
        "im.message.receive_v1",
        '{"schema":"2.0","header":{"event_id":"$id","event_type":"$event","create_time":"$time",'
        '"token":"$token"},"event":{"message":{"message_type":"text"}}}',
    ),
    "github": Sample(
        "issues.opened", '{"action":"$action","issue":{"id":$id,"number":1,"title":"hello"}}'
    ),
    "gitlab": Sample("Push Hook", '{"object_kind":"push","ref":"refs/heads/main"}'),
    "hmac": Sample("hello", '{"id":"$id","type":"$event"}'),
    "meta": Sample(
        "page.feed",
        '{"object":"$kind","entry":[{"id":"$id","time":$time,"changes":[{"field":"$action"}]}]}',
    ),
    "shopify": Sample("orders/create", '{"id":$id,"currency":"EUR","total_price":"12.00"}'),
    "slack": Sample(
        "app_mention",
        '{"type":"event_callback","event_id":"$id","event":{"type":"$event","text":"hello"}}',
    ),
    "standard": Sample("invoice.paid", '{"type":"$event","timestamp":$time,"data":{"id":"$id"}}'),
    "stripe": Sample(
        "charge.succeeded",
        '{"id":"$id","object":"event","type":"$event","created":$time,"data":{"object":{}}}',
    ),
    "telegram": Sample(
        "message",
        '{"update_id":$id,"$event":{"message_id":1,"date":$time,"chat":{"id":1,"type":"private"},'
        '"text":"hello"}}',
    ),
    "twilio": Sample("ringing", "CallSid=CA$id&CallStatus=$event&From=%2B4930123&To=%2B4930124"),
    "wechat": Sample(
        "text", f"{_MESSAGE}<Content><![CDATA[hello]]></Content><MsgId>$id</MsgId></xml>"
    ),
    "wechat event": Sample(
        "event.subscribe", f"{_MESSAGE}<Event><![CDATA[$action]]></Event></xml>"
    ),
    "x": Sample("", '{"for_user_id":"1","tweet_create_events":[{"id_str":"$id","text":"hello"}]}'),
}
SAMPLES["wecom"] = SAMPLES["wechat"]
SAMPLES["wecom event"] = SAMPLES["wechat event"]


def sample(
    scheme: str, event: str, identity: str, now: float, token: str = ""
) -> tuple[str, bytes]:
    """Return an event (`event`, unless that is empty) and the body of a delivery of it."""
    found = SAMPLES[scheme]
    event = event or found.event
    kind, _, action = event.partition(".")
    found = SAMPLES.get(f"{scheme} {kind}", found)
    body = Template(found.body).substitute(
        event=event, kind=kind, action=action, id=identity, time=int(now), token=token
    )
    return event, body.encode()

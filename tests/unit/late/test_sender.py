"""What is sent late, where to, and what the sender's answers mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from gateway.answer import JSON, TEXT, Answer
from gateway.clock import time
from gateway.config.late import Late, senders
from gateway.errors import ResultUnusable
from gateway.http_client import NotAllowed, Response, is_public
from gateway.late.record import NOT_TAKEN, REFUSED, TAKEN, UNKNOWN
from gateway.late.sender import MAX_MESSAGE, Sender, retry_after

ADDRESS = {
    "xml:FromUserName": "o1", "xml:AgentID|int": 2, "json:/event/token or json:/token": "c-1",
    "json:/message/chat/id or json:/edited_message/chat/id or json:/channel_post/chat/id"
    " or json:/callback_query/message/chat/id": 7,
}  # fmt: skip


def sender(late: object) -> Sender:
    return Sender(Late.model_validate(late), None)


def sent(name: object, returned: object) -> object:
    """Return what is sent for what a task returns."""
    if isinstance(returned, str):
        answer = Answer(200, TEXT, returned.encode())
    else:
        answer = Answer(200, JSON, json.dumps(returned).encode())
    message = sender(name).message(answer, ADDRESS)
    return message and json.loads(message)


def content(text: str) -> dict:
    return {"msgtype": "text", "text": {"content": text}}


CARD = {"elements": [{"tag": "hr"}]}
MESSAGES = [
    ("slack", "größe", {"text": "größe"}),
    ("slack", {"blocks": []}, {"blocks": []}),
    ("slack", [1, 2], {"text": "[1, 2]"}),
    ("discord", "hi", {"content": "hi"}),
    ("discord", {"content": "hi"}, {"content": "hi"}),
    ("discord", {"type": 4, "data": {"content": "hi"}}, {"content": "hi"}),
    ("dingtalk-robot", "hi", content("hi")),
    ("feishu-card", CARD, {"token": "c-1", "card": CARD}),
    ("feishu-card", {"card": {"type": "raw", "data": CARD}}, {"token": "c-1", "card": CARD}),
    ("wechat", "hi", {**content("hi"), "touser": "o1"}),
    ("wechat", {"MsgType": "text", "Content": "hi"}, {**content("hi"), "touser": "o1"}),
    ("wechat", {"msgtype": "image", "touser": "x"}, {"msgtype": "image", "touser": "o1"}),
    ("wecom", "hi", {**content("hi"), "touser": "o1", "agentid": 2}),
    ("telegram", "hi", {"text": "hi", "chat_id": 7}),
    ("telegram", {"text": "*hi*", "parse_mode": "Markdown"},
     {"text": "*hi*", "parse_mode": "Markdown", "chat_id": 7}),
    ({"url": "https://a/", "hosts": ["a"], "body": {"result": "{answer}"}}, {"a": 1},
     {"result": {"a": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "returned", "expected"), MESSAGES)
def test_what_a_task_returns_becomes_the_senders_message(name, returned, expected):
    assert sent(name, returned) == expected


def test_every_sender_is_tested():
    assert {name for name, _, _ in MESSAGES if isinstance(name, str)} == {*senders()}


@pytest.mark.parametrize(("name", "returned"), [("slack", ""), ("wechat", "success")])
def test_there_may_be_nothing_to_send(name, returned):
    assert sent(name, returned) is None


def test_a_text_is_sent_as_it_is_where_the_block_says_no_more():
    plain = sender({"url": "https://a/", "hosts": ["a"]})
    assert plain.message(Answer(200, TEXT, b"hi"), {}) == "hi"


@pytest.mark.parametrize("body", [b"\xff", b"x" * (MAX_MESSAGE + 1)])
def test_what_cannot_be_sent_is_told(body):
    with pytest.raises(ResultUnusable):
        sender("slack").message(Answer(200, TEXT, body), {})


@pytest.mark.parametrize("until", [10**400, "soon", "1e9", True])
def test_an_end_that_is_no_time_is_passed_over(until):
    found = sender("dingtalk-robot").window({"json:/sessionWebhookExpiredTime": until}, 400.0)
    assert found <= 5_000


@pytest.mark.parametrize(
    ("id", "token", "part"),
    [("1/../2", "a b?c#d", "1%2F..%2F2/a%20b%3Fc%23d"), ("\ud83d", "t", "%3F/t")],
)
def test_values_in_a_url_are_escaped_and_half_an_emoji_is_a_question_mark(id, token, part):
    url = sender("discord")._url({"json:/application_id": id, "json:/token": token})
    assert url.endswith(f"/webhooks/{part}/messages/@original")


@pytest.mark.parametrize(
    ("name", "status", "headers", "body", "kind", "after"),
    [
        ("slack", 200, {}, "ok", TAKEN, 0),
        ("slack", 404, {}, "no_active_hooks", REFUSED, 0),
        ("slack", 307, {}, "", REFUSED, 0),
        ("slack", 429, {"retry-after": "7"}, "", NOT_TAKEN, 7),
        ("slack", 503, {}, "", NOT_TAKEN, 0),
        ("slack", 502, {}, "", UNKNOWN, 0),
        ("wechat", 200, {}, '{"errcode":0}', TAKEN, 0),
        ("wechat", 200, {}, '{"errcode":-1}', NOT_TAKEN, 0),
        ("wechat", 200, {}, '{"errcode":45015}', REFUSED, 0),
        ("wechat", 200, {}, "<html>", UNKNOWN, 0),
        ("telegram", 429, {}, '{"ok":false,"parameters":{"retry_after":9}}', NOT_TAKEN, 9),
        ("telegram", 429, {}, f'{{"parameters":{{"retry_after":{10**400}}}}}', NOT_TAKEN, 86_400),
    ],
)
def test_what_a_senders_answer_means(name, status, headers, body, kind, after):
    verdict = sender(name)._verdict(Response(status, headers, body.encode()))
    assert (verdict.kind, verdict.after) == (kind, after)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "nan", f"Mon, 01 Jan {10**9} 00:00:00 GMT", f"1 Jan 2026 {10**9}:00"]
)
def test_a_malformed_pause_is_none(text):
    assert retry_after(text) == 0


def test_a_pause_may_be_a_date():
    when = format_datetime(datetime.fromtimestamp(time() + 100, UTC), usegmt=True)
    assert 90 < retry_after(when) <= 100


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/x", "https://hooks.slack.com:8443/x", "https://hooks.slack.com.a/x",
        "https://a@hooks.slack.com/x", "https://hooks.slack.com@a/x", "https://hooks.slack.com\\@a/",
        "https://[::1]/x", "https://127.0.0.1/", "ftp://hooks.slack.com/", "https:hooks.slack.com",
        "//hooks.slack.com/x", "https://hooks.slack.com/\n", "https://hooks.slack.com:x/", "[", "",
        "https://hooks.slack.com/" + "x" * 5_000, "https://hooks.slack.com%00.a/",
    ],
)  # fmt: skip
def test_urls_that_lead_elsewhere_are_refused(url):
    with pytest.raises(NotAllowed):
        sender("slack")._client.check(url)


@pytest.mark.parametrize("url", ["https://hooks.slack.com/x", "https://HOOKS.slack.com:443/x?a=b"])
def test_urls_of_the_sender_are_taken(url):
    assert sender("slack")._client.check(url) == "hooks.slack.com"


def test_only_a_host_of_the_file_may_be_without_tls():
    own = sender({"like": "slack", "hosts": ["127.0.0.1:9", "hooks.slack.com"]})._client
    assert own.check("http://127.0.0.1:9/x") == "127.0.0.1:9"
    with pytest.raises(NotAllowed):
        own.check("http://hooks.slack.com/x")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.1.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "192.0.0.8", "198.18.0.1", "224.0.0.1", "255.255.255.255", "::", "::1",
        "fe80::1", "fe80::1%eth0", "fec0::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::127.0.0.1", "2002:7f00:1::",
        "64:ff9b::a00:1", "64:ff9b:1::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_of_networks_are_not_public(address):
    assert not is_public(address)


def test_addresses_of_the_internet_are_public():
    public = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
    assert [*filter(is_public, public)] == public

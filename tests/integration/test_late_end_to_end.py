"""Late answers by whole gateways, after WeChat's three tries."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
import redis

from tests.integration.deliveries import Servers, send
from tests.integration.late_senders import SenderServer, serving, wechat
from tests.integration.senders import SECRET, proof, times
from tests.integration.test_late_answers import parts
from tests.support.config import route, source
from tests.support.http_client import Answer
from tests.support.requests import metric
from tests.support.stack import Server
from tests.support.waiting import eventually


def of_wechat(server: SenderServer, **times: float) -> str:
    """A configuration with a route of WeChat's, whose results are sent late to a server."""
    late, app, _, _ = parts("wechat", server)
    return (
        "journal = 100\n"
        + source("main", "wechat", secrets=SECRET, **app)
        + route("/wechat", source="main", answer="wait-then-accept", late=late, **times)
    )


def entry(servers: Servers, delivery_id: str) -> dict[str, str]:
    with redis.Redis.from_url(servers.results.url, decode_responses=True) as client:
        (key,) = client.keys(f"gateway:*{{journal}}:delivery:{delivery_id}")
        return client.hgetall(key)


WORKER = {"concurrency": 8}
#: Seconds for which WeChat waits, a fifth of the real ones, and those that a task takes.
PAUSE, TASK = 1, 4


@pytest.mark.parametrize("strategy", ["redis", "pika"])
async def test_wechats_user_gets_the_answer_after_three_tries(servers, strategy):
    """Each try is held, the last one answered with success."""

    async with serving(SenderServer(wechat)) as server:
        config = of_wechat(server, deadline=PAUSE - 0.5, retry_after=PAUSE)
        gateway = await asyncio.to_thread(servers.gateway, strategy, config)
        name, user = f"long-{uuid4()}", f"o{uuid4()}"
        body = (
            f"<xml><FromUserName>{user}</FromUserName><ToUserName>gh_1</ToUserName>"
            f"<MsgType>text</MsgType><Content>{name}</Content><MsgId>1</MsgId></xml>"
        )

        answers = [await attempt(gateway, body) for _ in range(3)]
        assert not server.seen
        await eventually(lambda: server.taken)

        assert answers[:2] == [None, None]
        assert (answers[2].status, answers[2].body) == (200, b"success")
        sent = {"msgtype": "text", "text": {"content": body}, "touser": user}
        assert server.taken == [sent]
        delivery_id = answers[2].headers["x-delivery-id"]
        await eventually(lambda: entry(servers, delivery_id)["state"] == "answered-late")
        count = {"http_route": "/wechat", "result": "answered"}
        assert metric(gateway, "gateway_late_answers_total", **count) == 1


async def attempt(gateway: Server, body: str) -> Answer | None:
    """Send a try as WeChat does; None: it has hung up."""
    query = times()
    query |= {"signature": proof(query), "seconds": str(TASK)}
    target = "/wechat?" + "&".join(f"{key}={value}" for key, value in query.items())
    return await send(gateway, target, body, patience=PAUSE)

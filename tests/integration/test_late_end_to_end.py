"""Late answers by whole gateways: WeChat's three tries, and gateways that are killed."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from uuid import uuid4

import pytest
import redis

from gateway.failpoints import LATE, LATE_BEGUN, LATE_SENT
from gateway.late.record import LEASE
from tests.integration.deliveries import URLS, Servers
from tests.integration.late_senders import SenderServer, discord, serving, slack, wechat
from tests.integration.senders import SECRET, proof, times
from tests.support.config import route, source
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import metric
from tests.support.stack import Server
from tests.support.waiting import eventually

KILLS = int(os.environ.get("KILLS", "1"))


def of_wechat(host: str, **times: float) -> str:
    """A configuration with a route of WeChat's, whose results are sent late to `host`."""
    url = f"http://{host}/cgi-bin/"
    body = {"grant_type": "client_credential", "appid": "{app_id}", "secret": "{app_secret}"}
    token = {"url": f"{url}stable_token", "body": body}
    late = {
        "like": "wechat",
        "hosts": [host],
        "url": f"{url}message/custom/send?access_token={{token}}",
        "fetch": {**token, "token": "/access_token", "life": "/expires_in"},
    }
    app = {"app_id": "wx1", "app_secret": "app secret"}
    return (
        "journal = 100\n"
        + source("main", "wechat", secrets=SECRET, **app)
        + route("/wechat", source="main", answer="wait-then-accept", late=late, **times)
    )


def keyed(slack: str, discord: str) -> str:
    """A configuration with routes whose deliveries have keys, and are answered late there."""
    key = {"idempotency": "header:Idempotency-Key"}
    url = f"http://{discord}/webhooks/{{json:/application_id}}/{{json:/token}}/messages/@original"
    in_slack = {"answer": "accept", "fallback": "soon", "late": {"like": "slack", "hosts": [slack]}}
    in_discord = {
        "answer": "wait-then-accept",
        "deadline": 0.3,
        "fallback": '{"type":5}',
        "content_type": "application/json",
        "late": {"like": "discord", "hosts": [discord], "url": url},
    }
    routes = route("/slack", **key, **in_slack) + route("/discord", **key, **in_discord)
    return f"journal = 1000\n{URLS}{routes}"


def entry(servers: Servers, delivery_id: str) -> dict[str, str]:
    with redis.Redis.from_url(servers.results.url, decode_responses=True) as client:
        (key,) = client.keys(f"gateway:*{{journal}}:delivery:{delivery_id}")
        return client.hgetall(key)


WORKER = {"concurrency": 8}


@pytest.mark.parametrize(("strategy", "pause", "task"), [("redis", 1, 4), ("pika", 5, 40)])
async def test_wechats_user_gets_the_answer_after_three_tries(servers, strategy, pause, task):
    """Each try is held, the last one answered with success; at first in a fifth of the time."""

    async with serving(SenderServer(wechat)) as server:
        config = of_wechat(server.host, deadline=pause - 0.5, retry_after=pause)
        gateway = await asyncio.to_thread(servers.gateway, strategy, config)
        name, user = f"long-{uuid4()}", f"o{uuid4()}"
        body = (
            f"<xml><FromUserName>{user}</FromUserName><ToUserName>gh_1</ToUserName>"
            f"<MsgType>text</MsgType><Content>{name}</Content><MsgId>1</MsgId></xml>"
        )

        answers = [await attempt(gateway, body, name, pause, task) for _ in range(3)]
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
        await asyncio.to_thread(gateway.stop)


async def attempt(
    gateway: Server, body: str, name: str, patience: float, task: float
) -> Answer | None:
    """Send a try as WeChat does; None: it has hung up after so many seconds."""
    query = times()
    query |= {"signature": proof(query), "seconds": str(task)}
    target = "/wechat?" + "&".join(f"{key}={value}" for key, value in query.items())
    async with await Connection.open(gateway.port) as connection:
        sending = asyncio.ensure_future(connection.ask(request(body.encode(), target)))
        done, _ = await asyncio.wait([sending], timeout=patience)
        if done:
            return sending.result()
        sending.cancel()
        return None


@pytest.mark.parametrize("path", ["/slack", "/discord"])
async def test_a_killed_gateways_late_answer_is_sent_by_another_or_told_to_be_uncertain(
    servers, tmp_path, path
):
    async def at(step: str, server: SenderServer, config: str) -> None:
        armed = tmp_path / step
        failpoint = {"GATEWAY_FAILPOINT": f"{step}:{armed}"}
        doomed = await asyncio.to_thread(servers.gateway, "redis", config, env=failpoint)
        for n in range(KILLS):
            armed.touch()
            await one(doomed, armed, step, server, f"{step}-{path[1:]}-{n}-{uuid4()}")
        await asyncio.to_thread(doomed.stop)

    async def one(doomed: Server, armed: Any, step: str, server: SenderServer, name: str) -> None:
        body = {"response_url": f"{server.url}/{name}", "application_id": "1", "token": name}
        asked = f"{path}?until={name}", f"Idempotency-Key: {name}"
        answer = None
        async with await Connection.open(doomed.port) as connection:
            try:
                text = json.dumps(body).encode()
                answer = await connection.ask(request(text, *asked))
            except (EOFError, ConnectionError):
                assert step == LATE[0]  # killed before the answer
        servers.release(name)
        in_between = step in (LATE_BEGUN, LATE_SENT)
        replaced = path == "/discord"
        state = "late-answer-uncertain" if in_between and not replaced else "answered-late"
        if answer is not None:
            delivery_id = answer.headers["x-delivery-id"]
            ended = ("answered-late", "late-answer-uncertain")
            await eventually(lambda: entry(servers, delivery_id)["state"] in ended, 2 * LEASE)
        else:
            await eventually(lambda: requests_to(server, name))
        if armed.exists():  # the other gateway was first
            in_between, state = False, "answered-late"
        times = 0 if step == LATE_BEGUN and in_between and not replaced else 1
        times += step == LATE_SENT and in_between and replaced
        assert requests_to(server, name) == times
        if answer is not None:
            assert entry(servers, delivery_id)["state"] == state

    def requests_to(server: SenderServer, name: str) -> int:
        return sum(name in seen.target for seen in server.seen)

    kinds = {"/slack": slack, "/discord": discord}
    async with serving(SenderServer(kinds[path])) as server:
        config = keyed(server.host, server.host)
        other = await asyncio.to_thread(servers.gateway, "redis", config)
        await asyncio.gather(*(at(step, server, config) for step in LATE))
        await asyncio.to_thread(other.stop)

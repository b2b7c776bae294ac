"""Results that are sent late: to servers that play senders, from processes that are killed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from random import Random
from time import time
from typing import Any
from uuid import uuid4

import pytest
import redis

from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import StateUnavailable
from gateway.failpoints import LATE, LATE_BEGUN, LATE_SENT
from gateway.http_client import HttpClient, NotSent
from gateway.journal.entry import ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN, SUCCEEDED
from gateway.late import answers, record
from gateway.late.answers import LateAnswers
from gateway.late.store import Found, record_key
from gateway.metrics import Metrics
from gateway.stores.results import Results
from tests.integration.late_senders import (
    CUT,
    HANG,
    SenderServer,
    dingtalk,
    discord,
    feishu,
    free_address,
    serving,
    slack,
    wechat,
)
from tests.support.stack import Server
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def shortened(monkeypatch):
    """Let processes look soon at what others have left."""
    monkeypatch.setattr(record, "LOOK", 0.2)
    monkeypatch.setattr("gateway.late.store.LOOK", 0.2)
    monkeypatch.setattr(answers, "LOOK", 0.2)
    monkeypatch.setattr(answers, "_PAUSE", 0.05)
    monkeypatch.setattr(record, "LEASE", 1.0)
    monkeypatch.setattr(record, "_FIRST", 0.1)
    monkeypatch.setattr("gateway.http_client.REQUEST", 0.5)


@pytest.fixture
def unhurried(monkeypatch):
    """Let a busy machine end a request in time: where it does not, the record goes another way."""
    monkeypatch.setattr(record, "LEASE", 4.0)
    monkeypatch.setattr("gateway.http_client.REQUEST", 2.0)
    # Nor is a fallback given before the record is kept, which would go with the process.
    monkeypatch.setattr("gateway.background.LATEST", 60.0)


class Killed(asyncio.CancelledError):
    """Ends what a process does at the step where it is.

    A task that ends with a `CancelledError` has no exception that somebody must retrieve: asyncio
    would log thousands of them whenever the garbage collector runs.
    """


class Doomed:
    """A failpoint that kills its process, which is one in name only, at the step `name`."""

    def __init__(self, name: str = ""):
        self.name = name
        self.killed = asyncio.Event()

    def reach(self, name: str) -> None:
        if name == self.name or self.killed.is_set():
            self.killed.set()
            raise Killed


class Journal:
    """Notes what it is told, once, however often a record is taken over."""

    def __init__(self) -> None:
        self.states: dict[str, list[str]] = {}

    async def settle(self, delivery_id: str, task_id: str, end: Any) -> None:
        states = self.states.setdefault(delivery_id, [])
        if end.state not in states:
            states.append(end.state)


class Gateways:
    """Processes of gateways on one Redis, with one route."""

    def __init__(self, url: str, late: dict[str, Any], **source: Any):
        known = {"scheme": "github", "secrets": "s", **source}
        route = {"path": "/r", "source": "s", "answer": "wait-then-accept", "fallback": "wait"}
        self.config = Config(
            result_backend=url, sources={"s": known}, routes=[{**route, "late": late}]
        )
        self.journal = Journal()
        self.metrics = Metrics(routes=["/r"])
        self.given: list[str] = []

    @asynccontextmanager
    async def process(self, failpoint: Doomed | None = None) -> AsyncIterator[LateAnswers]:
        failpoint = failpoint or Doomed()
        results = Results(self.config)
        late = LateAnswers(self.config, self.metrics, results, self.journal, None, failpoint)
        await results.start()
        await late.start()
        try:
            yield late
        finally:
            if failpoint.killed.is_set():  # what a killed process leaves is not ended
                for task in (*late._begun._running, *late._tasks):
                    task.cancel()
                await asyncio.gather(*late._begun._running, *late._tasks, return_exceptions=True)
            await late.stop()
            await results.stop()

    async def answer(
        self, late: LateAnswers, body: Any, given: bool = True, task_id: str = "", by: Any = None
    ) -> str:
        """Give the fallback for a delivery with `body`, unless the process with the failpoint `by`
        is killed before; return the id of the delivery's task."""
        task_id, fallback = task_id or str(uuid4()), asyncio.Event()

        def give() -> bool:
            self.given.append(task_id)
            fallback.set()
            return given

        loop = asyncio.get_running_loop()
        late.expect(self.config.routes[0], delivery(task_id, body), task_id, 0.0, loop.time(), give)
        await eventually(lambda: fallback.is_set() or (by is not None and by.killed.is_set()))
        return task_id

    async def send(
        self, client: redis.Redis, late: LateAnswers, body: Any, result: str = "answered"
    ) -> str:
        """Let a task succeed after its fallback; return its id once this `result` is counted."""
        before = self.count(result)
        task_id = await self.answer(late, body)
        end(client, task_id, "done")
        await eventually(lambda: self.count(result) > before)
        return task_id

    def count(self, result: str) -> float:
        return self.metrics._values[self.metrics.place("gateway_late_answers_total", "/r", result)]


def delivery(delivery_id: str, body: Any) -> Delivery:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Delivery(delivery_id, "/r", {}, {}, "", {}, data, "", time())


def end(client: redis.Redis, task_id: str, value: Any, status: str = "SUCCESS") -> None:
    """End a task, as Celery's worker does."""
    payload = json.dumps({"status": status, "result": value})
    key = f"celery-task-meta-{task_id}"
    client.pipeline().set(key, payload, ex=300).publish(key, payload).execute()


#: For each sender: its server, the block, the source's options, the delivery, what a text becomes.
def parts(kind: str, server: SenderServer) -> tuple[dict, dict, Any, Any]:
    url, hosts = server.url, [server.host]
    block: dict[str, Any] = {"like": kind, "hosts": hosts}
    app = {"app_id": "wx1", "app_secret": "app secret"}
    if kind == "slack":
        return block, {}, {"response_url": f"{url}/actions/{uuid4()}"}, {"text": "done"}
    if kind == "discord":
        block["url"] = url + "/webhooks/{json:/application_id}/{json:/token}/messages/@original"
        return block, {}, {"application_id": "1", "token": "a/b"}, {"content": "done"}
    if kind == "dingtalk-robot":
        until = int((time() + 60) * 1000)
        body = {"sessionWebhook": f"{url}/robot", "sessionWebhookExpiredTime": until}
        return block, {}, body, {"msgtype": "text", "text": {"content": "done"}}
    if kind == "feishu-card":
        block["url"] = url + "/open-apis/interactive/v1/card/update"
        block["fetch"] = {
            "url": url + "/open-apis/auth/v3/tenant_access_token/internal",
            "body": {"app_id": "{app_id}", "app_secret": "{app_secret}"},
            "token": "/tenant_access_token", "life": "/expire",
        }  # fmt: skip
        token = f"c-{uuid4()}"
        inner = {"tag": "div", "text": {"tag": "plain_text", "content": "done"}}
        expected = {"token": token, "card": {"elements": [inner]}}
        return block, app, {"event": {"token": token}}, expected
    block["url"] = url + "/cgi-bin/message/custom/send?access_token={token}"
    block["fetch"] = {
        "url": url + "/cgi-bin/stable_token",
        "body": {"grant_type": "client_credential", "appid": "{app_id}", "secret": "{app_secret}"},
        "token": "/access_token", "life": "/expires_in",
    }  # fmt: skip
    user = f"o{uuid4()}"
    body = f"<xml><FromUserName>{user}</FromUserName></xml>".encode()
    expected = {"msgtype": "text", "text": {"content": "done"}, "touser": user}
    return block, app, body, expected


SENDERS = {
    "slack": slack, "discord": discord, "dingtalk-robot": dingtalk, "feishu-card": feishu,
    "wechat": wechat,
}  # fmt: skip
STATES = (ANSWERED_LATE, LATE_UNCERTAIN)
REPLACES = {"discord", "feishu-card"}
FETCH = {"feishu-card", "wechat"}  # a token


@pytest.fixture
def deployed(redis_server: Server) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """A sender of a kind, gateways with its block and `more` of that, a delivery, the message."""

    @asynccontextmanager
    async def deployed(
        kind: str, faults: Sequence[Any] = (), takes: bool = True, **more: Any
    ) -> AsyncIterator[tuple[SenderServer, Gateways, Any, Any]]:
        async with serving(SenderServer(SENDERS[kind], list(faults), takes)) as server:
            block, source, body, expected = parts(kind, server)
            yield server, Gateways(redis_server.url, {**block, **more}, **source), body, expected

    return deployed


@pytest.mark.parametrize("kind", SENDERS)
async def test_a_result_is_sent_after_the_fallback(client, deployed, kind):
    async with deployed(kind) as (server, gateways, body, expected), gateways.process() as late:
        task_id = await gateways.send(client, late, body)

    assert server.taken == [expected]
    assert gateways.journal.states[task_id] == [SUCCEEDED, ANSWERED_LATE]
    assert late.held() == {"late answers": 0, "late steps": 0}


async def test_an_unreadable_record_keeps_no_other_waiting(client, deployed, caplog, monkeypatch):
    monkeypatch.setattr(answers, "_DRAIN", 0.1)  # it goes on trying to write them

    async with deployed("slack") as (server, gateways, body, expected), gateways.process() as late:
        of_no_version = ({"due": "soon"}, {"values": None}, {"route": []}, {"end": "lost"})
        fine = json.loads(record.Record("t", "d", "/r", "k", {}, "", 1.0, 2.0).dump())
        odd = (json.dumps(fine | each) for each in of_no_version)
        texts = ("", "{", "[]", "{}", '{"due": 1}', "null", None, *odd)
        unreadable = {str(uuid4()): text for text in texts}
        for task_id, text in unreadable.items():
            key = record_key(gateways.config.prefix, task_id)
            if text is None:
                client.set(key, "no hash")
            else:
                client.hset(key, mapping={"version": 1, "record": text})
            client.zadd(late._records._due, {task_id: 0})
        await eventually(lambda: all(is_looked_at(client, late, each) for each in unreadable))
        # They are given all the same.
        some = [gateways.answer(late, body, task_id=task_id) for task_id in unreadable]
        await asyncio.gather(*some)
        task_id = await gateways.send(client, late, body)

    assert server.taken == [expected]
    assert late.held() == {"late answers": 0, "late steps": 0}
    assert caplog.text.count("cannot be read") == 11  # once for each


def is_looked_at(client: redis.Redis, late: LateAnswers, task_id: str) -> bool:
    return client.zscore(late._records._due, task_id) > 0


async def test_a_record_of_another_block_is_left_until_it_is_over(client, deployed, redis_server):
    async with deployed("slack") as (server, gateways, body, expected):
        block, *_ = parts("slack", server)
        other = Gateways(redis_server.url, {**block, "body": {"other": "{answer}"}})
        brief = Gateways(redis_server.url, {**block, "window": 1})
        async with other.process():
            async with brief.process() as late:
                over = await brief.answer(late, body)
            await eventually(lambda: other.count("failed") + brief.count("failed"))
            async with gateways.process() as late:
                task_id = await gateways.answer(late, body)
            before = client.zscore(late._records._due, task_id)
            end(client, task_id, "done")
            await eventually(lambda: client.zscore(late._records._due, task_id) > before)
            async with gateways.process():
                await eventually(lambda: gateways.count("answered"))

        assert server.taken == [expected]
        assert other.journal.states | brief.journal.states == {over: [LATE_FAILED]}


@pytest.mark.parametrize("kind", SENDERS)
async def test_errors_and_limits_are_waited_out(client, deployed, kind):
    async with deployed(kind, tries=5) as (server, gateways, body, expected):
        # Where a token is fetched, that fails first, and then what it is for.
        server.faults = [(429, {"Retry-After": "1"}, ""), (503, {}, ""), (500, {}, "")]
        async with gateways.process() as late:
            begun = time()
            await gateways.send(client, late, body)

        assert time() - begun > 1
        assert server.taken == [expected]


@pytest.mark.parametrize("fault", [HANG, CUT])
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("kind", SENDERS)
async def test_unanswered_only_what_replaces_is_sent_again(client, deployed, kind, takes, fault):
    async with deployed(kind, takes=takes) as (server, gateways, body, expected):
        async with gateways.process() as late:
            if kind in FETCH:  # the token is there already
                await gateways.send(client, late, parts(kind, server)[2])
                server.taken.clear()
            server.faults = [fault]
            task_id = await gateways.answer(late, body)
            end(client, task_id, "done")
            await eventually(lambda: len(gateways.journal.states.get(task_id, ())) == 2)

        state = gateways.journal.states[task_id][-1]
        assert state == (ANSWERED_LATE if kind in REPLACES else LATE_UNCERTAIN)
        expected_times = takes + (kind in REPLACES)
        assert server.taken == [expected] * expected_times


async def test_what_the_sender_refuses_is_told_and_not_sent_again(client, deployed):
    async with deployed("slack", faults=[(404, {}, "expired_url")]) as (server, gateways, body, _):
        async with gateways.process() as late:
            task_id = await gateways.send(client, late, body, "failed")

        assert len(server.seen) == 1
        assert gateways.journal.states[task_id] == [SUCCEEDED, LATE_FAILED]


async def test_redirects_are_not_followed(client, redis_server):
    async with serving(SenderServer(slack)) as other, serving(SenderServer(slack)) as server:
        server.faults = [(307, {"Location": f"{other.url}/x"}, "")]
        block, _, body, _ = parts("slack", server)
        gateways = Gateways(redis_server.url, {**block, "hosts": [server.host, other.host]})
        async with gateways.process() as late:
            await gateways.send(client, late, body, "failed")

        assert not other.seen


@pytest.mark.parametrize(
    "url",
    ["http://{}/x", "https://{}/x", "https://hooks.slack.com@{}/x", "https://169.254.169.254/"],
)
async def test_no_other_host_is_connected_to(client, redis_server, url):
    async with serving(SenderServer(slack)) as server:
        gateways = Gateways(redis_server.url, "slack")
        async with gateways.process() as late:
            body = {"response_url": url.format(server.host)}
            task_id = await gateways.send(client, late, body, "failed")

        assert gateways.given == [task_id]
        assert gateways.journal.states[task_id] == [LATE_FAILED]
        assert not server.seen


async def test_a_name_that_leads_into_our_network_is_not_used(client, redis_server, monkeypatch):
    async with serving(SenderServer(slack)) as server:
        real, asked = socket.getaddrinfo, []

        def rebound(host: str, port: int, *options: Any, **more: Any) -> Any:
            if host == "hooks.slack.com":
                asked.append(host)
                host, port = "127.0.0.1", server.port
            return real(host, port, *options, **more)

        monkeypatch.setattr(socket, "getaddrinfo", rebound)
        gateways = Gateways(redis_server.url, "slack")
        async with gateways.process() as late:
            body = {"response_url": "https://hooks.slack.com/actions/1"}
            task_id = await gateways.send(client, late, body, "failed")

        assert asked == ["hooks.slack.com"]
        assert not server.seen
        assert gateways.journal.states[task_id][-1] == LATE_FAILED


async def test_a_name_that_is_not_resolved_holds_up_no_other_names(monkeypatch):
    answered, real = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr("gateway.http_client.RESOLVE", 0.2)

    def silent(host: str, *options: Any, **more: Any) -> Any:
        if host == "hooks.slack.com":
            answered.wait()
            raise socket.gaierror
        return real(host, *options, **more)

    monkeypatch.setattr(socket, "getaddrinfo", silent)

    try:
        client = HttpClient(1_000)
        url = "https://hooks.slack.com/x"
        some = [client.fetch("POST", url, {}, b"x") for _ in range(50)]
        found = await asyncio.gather(*some, return_exceptions=True)
        assert all(isinstance(each, NotSent) for each in found)
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 1)
        assert not answered.is_set()
        answered.set()
        client.close()
    finally:
        answered.set()


async def test_a_host_that_refuses_the_connection_is_tried_again(client, redis_server):
    nobody = free_address()
    gateways = Gateways(redis_server.url, {"like": "slack", "hosts": [nobody], "tries": 3})
    async with gateways.process() as late:
        await gateways.send(client, late, {"response_url": f"http://{nobody}/"}, "failed")


@pytest.mark.parametrize("code", [40001, 42001])
async def test_wechats_token_is_fetched_once_and_renewed_when_not_valid(client, deployed, code):
    async with deployed("wechat") as (server, gateways, body, _), gateways.process() as late:
        for _ in range(3):
            end(client, await gateways.answer(late, body), "done")
        await eventually(lambda: gateways.count("answered") == 3)
        assert len(server.tokens) == 1
        server.faults = [(200, {}, json.dumps({"errcode": code}))]
        end(client, await gateways.answer(late, body), "done")
        await eventually(lambda: gateways.count("answered") == 4)
        # Five messages to one user: the sender's limit is reached with the next two.
        for _ in range(2):
            end(client, await gateways.answer(late, body), "done")
        await eventually(lambda: gateways.count("failed"))

    assert len(server.tokens) == 2
    assert len(server.taken) == 5


async def test_a_token_that_does_not_come_leaves_no_doubt(client, deployed, monkeypatch):
    """Many answers wait for one token: nobody waits for one fetch after the other."""
    monkeypatch.setattr(record, "LEASE", 2.0)

    own = {"takes": False, "faults": [HANG] * 5, "tries": 20}
    async with deployed("wechat", **own) as (server, gateways, _, _):
        async with gateways.process() as late, gateways.process():
            bodies = [parts("wechat", server)[2] for _ in range(8)]
            ids = [await gateways.answer(late, body) for body in bodies]
            for task_id in ids:
                end(client, task_id, "done")
            await eventually(lambda: all(map(settled, [client] * 8, ids)))

        ends = {task_id: gateways.journal.states[task_id] for task_id in ids}
        assert ends == dict.fromkeys(ids, [SUCCEEDED, ANSWERED_LATE])
        assert len(server.taken) == 8


async def test_no_token_is_told_where_the_pointer_to_it_is_wrong(client, redis_server, caplog):
    async with serving(SenderServer(wechat)) as server:
        block, source, body, _ = parts("wechat", server)
        block |= {"tries": 2, "fetch": {**block["fetch"], "token": "/token"}}
        gateways = Gateways(redis_server.url, block, **source)
        async with gateways.process() as late:
            server.faults = [(200, {}, '{"errcode":-1,"errmsg":"busy"}')]
            await gateways.send(client, late, body, "failed")

        assert server.tokens == ["token 0"]
        assert "token 0" not in caplog.text
        assert "200, with nothing at /token: access_token, expires_in" in caplog.text


async def test_a_renewed_token_that_is_refused_is_not_renewed_again(client, deployed):
    async with deployed("wechat") as (server, gateways, body, _), gateways.process() as late:
        await gateways.send(client, late, body)
        server.faults = [(200, {}, '{"errcode":40001}'), None]
        server.tokens.append("another one")
        real = server.answer
        refused = (200, {}, '{"errcode":42001}')
        server.answer = lambda s, r: real(s, r) if "token" in r.target[:22] else refused
        await gateways.send(client, late, body, "failed")

    sent = [each for each in server.seen if "custom/send" in each.target]
    assert len(sent) == 3


@pytest.mark.parametrize("seconds", [0.5, -1e6])
async def test_the_end_of_dingtalks_window_ends_the_wait(client, deployed, seconds):
    async with deployed("dingtalk-robot") as (server, gateways, body, _):
        body["sessionWebhookExpiredTime"] = int((time() + seconds) * 1000)
        async with gateways.process() as late:
            task_id = await gateways.answer(late, body)
            await eventually(lambda: gateways.count("failed"))
            end(client, task_id, "too late")

        assert not server.seen


async def test_nothing_is_sent_for_an_empty_result_a_failure_or_a_sender_who_left(client, deployed):
    async with deployed("slack") as (server, gateways, body, _), gateways.process() as late:
        empty, failed = [await gateways.answer(late, body) for _ in range(2)]
        gone = await gateways.answer(late, body, given=False)
        end(client, empty, None)
        end(client, failed, {"exc_type": "Boom", "exc_message": ["x"]}, "FAILURE")
        await eventually(lambda: gateways.count("dropped") == 2)
        await eventually(lambda: gateways.count("failed") == 1)
        end(client, gone, "done")

    assert not server.seen
    assert gateways.journal.states[failed] == ["failed", LATE_FAILED]


async def test_what_an_exception_says_of_redacted_values_is_not_kept(client, deployed, caplog):
    async with deployed("slack") as (server, gateways, body, _):
        (route,) = gateways.config.routes
        route = route.model_copy(update={"redact": ["json:/card"]})
        gateways.config = gateways.config.model_copy(update={"routes": [route]})
        async with gateways.process() as late:
            task_id = await gateways.answer(late, body)
            error = {"exc_type": "ValueError", "exc_message": ["no such card: 4111"]}
            end(client, task_id, error, "FAILURE")
            await eventually(lambda: gateways.count("failed"))
        assert "the task has no answer: ValueError (route" in caplog.text
        kept = client.hgetall(record_key(gateways.config.prefix, task_id))
        assert "4111" not in f"{caplog.text}{kept}"


async def test_what_could_not_be_written_before_the_answer_is_written_after_it(client, deployed):
    async with deployed("slack") as (server, gateways, body, expected), gateways.process() as late:
        get, given = late._records.get, len(gateways.given)

        async def away(task_id: str) -> Found:
            if len(gateways.given) > given:
                late._records.get = get
            raise StateUnavailable

        late._records.get = away
        await gateways.send(client, late, body)

    assert server.taken == [expected]


@pytest.mark.parametrize("given", [True, False])
async def test_a_record_that_was_written_without_an_answer_is_one_s_own(client, deployed, given):
    async with deployed("slack") as (server, gateways, body, expected), gateways.process() as late:
        swap = late._records.swap

        async def unanswered(new: Any, found: Any) -> bool:
            late._records.swap = swap
            await swap(new, found)
            raise StateUnavailable

        late._records.swap = unanswered
        task_id = await gateways.answer(late, body, given=given)
        if not given:
            await eventually(lambda: gateways.count("dropped"))
        end(client, task_id, "done")
        if given:
            await eventually(lambda: gateways.count("answered"))

    assert server.taken == [expected] * given


@pytest.mark.parametrize("begun", [True, False])
async def test_a_long_outage_leaves_no_doubt_of_the_unsent(client, deployed, monkeypatch, begun):
    monkeypatch.setattr(record, "LEASE", 60.0)
    monkeypatch.setattr(answers, "_BEGIN_FOR", 0.3)
    async with deployed("slack") as (server, gateways, body, expected), gateways.process() as late:
        swap, tried = late._records.swap, []

        async def stalled(new: Any, found: Any) -> bool:
            if new.state == record.SENDING and len(tried) < 3:
                tried.append(begun and await swap(new, found))
                raise StateUnavailable
            return await swap(new, found)

        late._records.swap = stalled
        task_id = await gateways.send(client, late, body)

    assert server.taken == [expected] and tried == [begun, False, False]
    assert gateways.journal.states[task_id] == [SUCCEEDED, ANSWERED_LATE]


async def test_a_later_try_gets_the_result_only_if_it_was_not_sent(client, deployed):
    async with deployed("slack") as (server, gateways, body, _):
        async with gateways.process() as late, gateways.process() as other:
            sent, unsent = [await gateways.answer(late, body) for _ in range(2)]
            end(client, sent, "done")
            await eventually(lambda: gateways.count("answered"))
            told: dict[str, bool] = {}
            for task_id in (sent, unsent, "unknown"):
                now = asyncio.get_running_loop().time()
                other.yields(task_id, now + 5, lambda yes, t=task_id: told.update({t: yes}))
            await eventually(lambda: len(told) == 3)
            # Nor is it sent for a try whose record comes later.
            for task_id in (unsent, "unknown"):
                await gateways.answer(late, body, task_id=task_id)
                end(client, task_id, "done")
            await eventually(lambda: gateways.count("dropped"))

        assert told == {sent: True, unsent: False, "unknown": False}
        assert len(server.seen) == 1


async def test_a_try_whose_sender_may_have_left_takes_nothing_back(client, deployed):
    async with deployed("slack") as (server, gateways, body, expected):
        async with gateways.process() as late, gateways.process() as other:
            waiting = await gateways.answer(late, body)
            told: dict[str, bool] = {}
            for task_id in (waiting, "unknown"):
                now = asyncio.get_running_loop().time()
                note = partial(told.__setitem__, task_id)
                other.yields(task_id, now + 5, note, doubtful=True)
            await eventually(lambda: len(told) == 2)
            end(client, waiting, "done")
            await eventually(lambda: gateways.count("answered"))

        assert told == {waiting: True, "unknown": False}
        assert server.taken == [expected]


async def test_a_later_try_is_answered_late_though_an_earlier_one_has_left(client, deployed):
    async with deployed("slack") as (server, gateways, body, expected):
        async with gateways.process() as late, gateways.process() as other:
            task_id = await gateways.answer(late, body, given=False)
            await eventually(lambda: gateways.count("dropped"))
            await gateways.answer(other, body, task_id=task_id)
            end(client, task_id, "done")
            await eventually(lambda: gateways.count("answered"))

        assert server.taken == [expected]


async def test_a_try_that_leaves_drops_nothing_that_a_later_one_waits_for(client, deployed):
    async with deployed("slack") as (server, gateways, body, expected):
        async with gateways.process() as late, gateways.process() as other:
            task_id = str(uuid4())
            records, swap = late._records, late._records.swap

            async def delayed(record: Any, found: Any) -> bool:
                if record.end:  # the later try comes before the earlier one's is dropped
                    await gateways.answer(other, body, task_id=task_id)
                return await swap(record, found)

            records.swap = delayed
            now = asyncio.get_running_loop().time()
            route = gateways.config.routes[0]
            late.expect(route, delivery(task_id, body), task_id, 0.0, now, lambda: False)
            await eventually(lambda: task_id in gateways.given)
            records.swap = swap
            end(client, task_id, "done")
            await eventually(lambda: gateways.count("answered"))

        assert server.taken == [expected]


def looks_of(late: LateAnswers) -> list[Any]:
    """Note what each look of the process finds due."""
    looks, due = [], late._records.due

    async def looked() -> Any:
        looks.append(await due())
        return looks[-1]

    late._records.due = looked
    return looks


async def taken_places(late: LateAnswers, host: str) -> asyncio.Semaphore:
    """Take all places of a host."""
    for _ in range(answers._SENDING):
        await late._places[host].acquire()
    return late._places[host]


async def test_what_waits_for_a_place_is_not_taken_up_again(client, deployed):
    async with deployed("slack") as (server, gateways, _, _), gateways.process() as late:
        looks = looks_of(late)
        await taken_places(late, "slow.example")
        place = await taken_places(late, server.host)
        bodies = [parts("slack", server)[2] for _ in range(3)]
        for task_id in [await gateways.answer(late, body) for body in bodies]:
            end(client, task_id, "done")
        await eventually(lambda: late.held()["late steps"] == 3)
        await eventually(lambda: sum(map(len, looks)) > 12)
        assert late.held()["late steps"] <= 3
        for _ in range(answers._SENDING):
            place.release()  # those of the other host stay taken
        await eventually(lambda: gateways.count("answered") == 3)

    assert len(server.taken) == 3


async def test_of_a_host_that_takes_nothing_few_are_held(client, deployed, monkeypatch):
    monkeypatch.setattr(answers, "_HELD", 3)

    async with deployed("slack") as (server, gateways, _, _), gateways.process() as late:
        looks, place = looks_of(late), await taken_places(late, server.host)
        bodies = [parts("slack", server)[2] for _ in range(9)]
        for body in bodies:
            end(client, await gateways.answer(late, body), "done")
            await eventually(lambda: not late.held()["late steps"] > 3)
        looks.clear()
        await eventually(lambda: sum(map(len, looks)) > 30)
        assert late.held()["late steps"] == 3
        for _ in range(answers._SENDING):
            place.release()
        await eventually(lambda: gateways.count("answered") == 9)

    assert len(server.taken) == 9


@pytest.mark.parametrize("kind", SENDERS)
async def test_killed_at_each_step(unhurried, redis_server, kind):
    """A process is killed while another one is there.

    Each step has a database and a sender of its own: a process that is killed may be sending what
    another one has kept, and a sender's new token may end the one before.
    """

    async def at(step: str, database: int) -> None:
        url = redis_server.url.removesuffix("0") + str(database)
        with redis.Redis.from_url(url) as client:
            client.flushdb()
            async with serving(SenderServer(SENDERS[kind])) as server:
                block, source, _, _ = parts(kind, server)
                gateways = Gateways(url, block, **source)
                async with gateways.process():
                    await one(client, server, gateways, step)

    async def one(client: redis.Redis, server: SenderServer, gateways: Gateways, step: str) -> None:
        body, expected = parts(kind, server)[2:]
        text, task_id = f"at {step}", str(uuid4())
        early = Random(f"{kind} {text}").random() < 0.5
        doomed = Doomed(step)
        async with gateways.process(doomed) as late:
            if early:
                end(client, task_id, text)
            await gateways.answer(late, body, task_id=task_id, by=doomed)
            if not early:
                end(client, task_id, text)
            await eventually(lambda: doomed.killed.is_set() or settled(client, task_id))
        await eventually(lambda: settled(client, task_id))

        expected = json.loads(json.dumps(expected).replace("done", text))
        assert gateways.journal.states[task_id][-1] in STATES
        taken = [message for message in server.taken if text in json.dumps(message)]
        state = json.loads(client.hget(hash_of(task_id), "record"))["end"]
        in_between = doomed.killed.is_set() and step in (LATE_BEGUN, LATE_SENT)
        arrived = not in_between or step == LATE_SENT
        if in_between and kind not in REPLACES:
            assert (state, taken) == ("uncertain", [expected] * arrived)
        else:
            again = in_between and arrived
            assert (state, taken) == ("answered", [expected] * (1 + again))

    await asyncio.gather(*(at(step, database) for database, step in enumerate(LATE, 1)))


def hash_of(task_id: str) -> str:
    return f"gateway:/::{{late}}:task:{task_id}"


def settled(client: redis.Redis, task_id: str) -> bool:
    text = client.hget(hash_of(task_id), "record")
    return text is not None and json.loads(text).get("told", False)

"""What becomes of verified and unverified deliveries: tasks, queues, limits, headers, secrets.

Secrets are rotated, read again, and kept out of every line; Twilio signs a URL; a clock is off.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.senders import AES_KEY, ENCRYPTION, SECRET, github, wechat
from tests.integration.webhooks import TASKS, Call, ask, ask_all
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server
from tests.support.waiting import until

UNROUTED = "gateway_events_unrouted_total"

OLD_SECRET, FILE_SECRET = "0ld-s3cret", "s3cret-in-a-file"
GITHUB = {"scheme": "github", "secrets": SECRET}
SOURCES: dict[str, dict[str, Any]] = {
    "github": {**GITHUB, "secrets": [SECRET, OLD_SECRET]},
    "strict": {**GITHUB, "unrouted": 410},
    "open": {**GITHUB, "pass_headers": ["Authorization", "X-Hub-Signature-256"]},
    "slow": {**GITHUB, "rate": 0.01},
    "wechat": {"scheme": "wechat", "secrets": SECRET, "tolerance": 0},
    "safe": {"scheme": "wechat", **ENCRYPTION},
    **{name: {"scheme": name, "secrets": SECRET} for name in ("gitlab", "telegram", "twilio")},
}
ROUTES = [
    {"path": "/github", "source": "github", "events": ["push", "star.*"], "task": "tests.seen"},
    {"path": "/github", "source": "github", "events": ["issues.*"], "task": "tests.seen",
     "queue": "issues"},
    {"path": "/strict", "source": "strict", "events": ["push"]},
    {"path": "/open", "source": "open", "task": "tests.seen"},
    {"path": "/wechat", "source": "wechat", "events": ["text"]},
    *({"path": f"/{n}", "source": n} for n in ("slow", "safe", "gitlab", "telegram", "twilio")),
    {"path": "/file", "source": "file"},
    {"path": "/fail", "source": "gitlab", "task": "appserver.tasks.fail"},
]  # fmt: skip
WORKER = {"app": TASKS, "queues": ["celery", "issues"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the configuration and the secret that it reads from a file."""
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "secret").write_text(f"{FILE_SECRET}\n")
    text = 'public_url = "https://hooks.example.com"\n' + toml(SOURCES, ROUTES)
    text += f'[sources.file]\nscheme = "github"\nsecrets = {{ file = "{directory}/secret" }}\n'
    (directory / "gateway.toml").write_text(text)
    return directory


@pytest.fixture(scope="module")
def gateway(stack, urls, worker, files) -> Server:
    return stack.gateway("--strategy=pika", *urls, "--config", str(files / "gateway.toml"))


# Events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "queue"),
    [("push", "celery"), ("star.created", "celery"), ("issues.opened", "issues")],
)
def test_an_event_goes_to_its_routes_queue(nginx, event, queue):
    answer = ask(nginx, github("/github", event))

    assert answer.status == 200, answer.body
    seen = json.loads(answer.body)
    assert seen["queue"] == queue
    assert (seen["delivery"]["event"], seen["delivery"]["source"]) == (event, "github")


@pytest.mark.parametrize(
    ("call", "status", "body"),
    [
        (lambda: github("/github", "fork"), 204, b""),
        (lambda: github("/github", "pushed"), 204, b""),
        (lambda: github("/strict", "issues.opened"), 410, b""),
        (lambda: wechat("event"), 200, b"success"),
    ],
    ids=["none", "not quite", "configured", "wechat"],
)
def test_an_event_that_no_route_takes_is_answered_and_counted(gateway, nginx, call, status, body):
    unrouted, published = metric(gateway, UNROUTED), metric(gateway, PUBLISHED)

    answer = ask(nginx, call())

    assert (answer.status, answer.body) == (status, body)
    assert metric(gateway, UNROUTED) == unrouted + 1
    assert metric(gateway, PUBLISHED) == published


def test_an_event_that_is_not_verified_is_not_counted(gateway, nginx):
    unrouted, published = metric(gateway, UNROUTED), metric(gateway, PUBLISHED)
    calls = [github("/github", event, "wrong") for event in ("push", "issues.opened", "fork")]
    assert {answer.status for answer in ask_all(nginx, calls)} == {401}
    assert (metric(gateway, UNROUTED), metric(gateway, PUBLISHED)) == (unrouted, published)


# Limits -------------------------------------------------------------------------------------


def test_a_sources_rate_is_spent_by_verified_deliveries_only(gateway, nginx):
    # Given a rate of one delivery in 100 s, and anybody's requests,
    calls = [github("/slow", secret="wrong") for _ in range(20)]
    assert {answer.status for answer in ask_all(nginx, calls)} == {401}

    # when the source sends, then its first delivery is taken,
    assert ask(nginx, github("/slow")).status == 200
    published = metric(gateway, PUBLISHED)

    # and the next one is not: it is told when to come again.
    answer = ask(nginx, github("/slow"))
    assert (answer.status, answer.type) == (429, "too-many")
    assert 90 <= int(answer.headers["retry-after"]) <= 100
    assert ask(nginx, github("/slow", secret="wrong")).status == 401
    assert metric(gateway, PUBLISHED) == published
    # Others' rates are their own.
    assert ask(nginx, github("/github")).status == 200


# Headers ------------------------------------------------------------------------------------

PRIVATE = {
    "Authorization": "Bearer abc", "Cookie": "a=b", "Proxy-Authorization": "Basic abc",
    "X-Custom": "mine",
}  # fmt: skip


def test_the_task_gets_the_secret_headers_that_are_passed(nginx):
    call = github("/open", **PRIVATE)

    headers = json.loads(ask(nginx, call).body)["headers"]

    assert headers["authorization"] == "Bearer abc"
    assert headers["x-hub-signature-256"] == call.headers["X-Hub-Signature-256"]
    assert not headers.keys() & {"cookie", "proxy-authorization", "x-hub-signature"}


# Secrets ---------------------------------------------------------------------------------------


def test_a_hangup_brings_the_new_secret_from_its_file(gateway, nginx, files):
    new = secrets.token_hex(16)

    def statuses() -> list[int]:
        both = [github("/file", secret=secret) for secret in (FILE_SECRET, new)]
        return [answer.status for answer in ask_all(nginx, both)]

    assert statuses() == [200, 401]
    (files / "secret").write_text(new)
    reload(gateway)
    # The old process still answers on the connection that nginx has kept, once.
    until(lambda: statuses() == [401, 200])


def reload(gateway: Server, word: str = "reloaded") -> None:
    told = gateway.output().count(f": {word}")
    os.kill(gateway.pid, signal.SIGHUP)
    until(lambda: gateway.output().count(f": {word}") > told)


def test_no_secret_is_in_a_log_line_or_in_an_answer(gateway, nginx, files):
    # Given requests that fail in many ways, some of them with the secret itself in them,
    calls = [
        github("/github", secret="wrong"),
        github("/github", secret="wrong", Authorization=SECRET),
        wechat("text", "wrong"),
        Call("/safe", b"<xml><Encrypt>YQ==</Encrypt></xml>", query=wechat("text").query),
        Call("/safe", b"<xml>", query=wechat("text").query),
        Call("/gitlab", b"{}", {"X-Gitlab-Token": f"{SECRET}!"}),
        Call("/telegram", b"no JSON", {"X-Telegram-Bot-Api-Secret-Token": SECRET}),
        Call("/fail", b"{}", {"X-Gitlab-Token": SECRET}),
        Call("/gitlab", query={"token": SECRET}, method="PUT"),
        Call("/nowhere", query={"token": SECRET}),
        Call("/twilio", b"a=b", {"X-Twilio-Signature": SECRET}),
    ]
    answers = ask_all(nginx, calls)
    statuses = [answer.status for answer in answers]
    assert statuses == [401, 401, 401, 401, 400, 401, 200, 502, 405, 404, 401]
    # and a configuration that cannot be used, with secrets at the wrong places,
    file = files / "gateway.toml"
    good, secret = file.read_text(), (files / "secret").read_text()
    wrong = {"scheme": "wechat", "secrets": [SECRET, ""], "aes_key": SECRET, "aes": OLD_SECRET}
    file.write_text(good + toml({"more": wrong}, []))
    reload(gateway, "not reloaded")
    file.write_text(good)

    # then none of it is in what the gateway, or nginx, has ever written.
    until(lambda: '"path":"/nowhere"' in written(nginx))
    logs = gateway.output() + written(nginx)
    assert "502 task-failed" in logs and "more.aes_key" in logs
    for word in (SECRET, OLD_SECRET, FILE_SECRET, secret, AES_KEY):
        assert word not in logs
        assert not any(word in answer.body.decode() for answer in answers)
        assert not any(word in str(answer.headers) for answer in answers)


def written(nginx: Server) -> str:
    """Return nginx's logs; it writes the one of requests once a second."""
    home = nginx.log.parent / f"nginx-{nginx.url.rpartition(':')[2]}"
    return nginx.output() + "".join(log.read_text() for log in home.glob("*.log"))


def test_a_tolerance_of_zero_is_told_at_the_start(gateway):
    told = [line for line in gateway.output().splitlines() if "tolerance 0" in line]
    assert len(told) == 1 and "WARNING" in told[0] and "source wechat:" in told[0]

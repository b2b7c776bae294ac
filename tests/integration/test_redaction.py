"""Redacted values are in messages and results only, and in nothing that the gateway keeps."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.pages.view import _OWN
from gateway.cli import main
from tests.integration.deliveries import URLS, Servers, deliver, run, send
from tests.support.config import route, source
from tests.support.http_client import Answer
from tests.support.otlp import Collector
from tests.support.requests import fetch
from tests.support.stack import Server
from tests.support.waiting import until

MARK = "mark-ü 4711"
#: How it may be written.
BY_URL = ("mark-%C3%BC%204711", "mark-%c3%bc%204711", "mark-%C3%BC+4711")
FORMS = (MARK, json.dumps(MARK)[1:-1], *BY_URL)
CONFIG = f"""
journal = 100
journal_refused = true
archive_url = "sqlite:///{{archive}}"
log_requests = true
trace_sample = 1
trace_endpoint = "{{collector}}"
{URLS}
"""
CONFIG += source("shop", "github", secrets=["sesame"])
REDACT = ["json:/card/number", "header:x-national-id", "query:seconds", "query:t", "param:id"]
KEY = "header:Idempotency-Key"
CONFIG += "".join(
    route(path, redact=REDACT, **more)
    for path, more in {
        "/wait/{id}": {"idempotency": KEY},
        "/accept/{id}": {"answer": "accept"},
        "/needs/{id}": {"args": ["json:/no/such"]},
        "/value/{id}": {"args": ["json:/card", "query:t", "json:/card/number"]},
        "/none/{id}": {"when": {"json:/kind": "other"}},
        "/signed/{id}": {"source": "shop"},
    }.items()
)
BODY = json.dumps({"card": {"number": MARK, "name": "shown"}, "memo": f"paid by {MARK}"})
PAGES = (
    "", "failures", "deliveries", "deliveries?state=failed", "routes", "sources", "workers",
    "servers", "again?state=failed", "metrics", "api/failures", "api/history", "api/gateways",
)  # fmt: skip
TARGET = "/mark-%C3%BC%204711?t=mark-%C3%BC+4711"
HEADERS = (f"X-National-Id: {FORMS[2]}", "Content-Type: application/json")


@pytest.fixture(scope="module")
def archive(servers: Servers) -> Path:
    return servers.directory / "redaction.db"


@pytest.fixture(scope="module")
def gateway(servers: Servers, collector: Collector, archive: Path) -> Server:
    config = CONFIG.replace("{collector}", collector.url).replace("{archive}", str(archive))
    env = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    return servers.gateway("redis", config, "--log-format", "text", env=env)


def kept(servers: Servers) -> dict[str, Any]:
    """Return all of Redis but the results of tasks."""
    found: dict[str, Any] = {}
    with servers.results.client as client:
        for key in client.scan_iter():
            if not key.startswith(b"celery-task-meta-"):
                kind = client.type(key).decode()
                read = {"hash": client.hgetall, "string": client.get, "set": client.smembers}
                read["stream"] = lambda key: client.xrange(key)
                read["zset"] = lambda key: client.zrange(key, 0, -1)
                found[repr(key)] = read[kind](key) if kind in read else None
    return found


def page(gateway: Server, path: str) -> str:
    headers = [f"{_OWN}: live"] if path.startswith("again") else []
    answer = fetch(f"{gateway.admin_url}/{path}", *headers)
    assert answer.status == 200
    return answer.body.decode()


def shown(gateway: Server, path: str = "") -> Any:
    return json.loads(page(gateway, f"api/deliveries{path}"))


def archived(servers: Servers, archive: Path) -> list[str]:
    """Copy the journal into the archive; return all that is in its file."""
    config = archive.with_suffix(".toml")
    config.write_text(f'journal = 100\narchive_url = "sqlite:///{archive}"\n')
    assert main(["archive", "--once", "--config", str(config), *servers.urls]) == 0
    with sqlite3.connect(archive) as database:
        return [*database.iterdump()]


def ask(gateway: Server, path: str, *headers: str, target: str = TARGET) -> Answer:
    answer = run(send(gateway, f"{path}{target}", BODY, *HEADERS, *headers))
    assert answer is not None
    return answer


def test_a_redacted_value_is_nowhere(servers, gateway, archive, collector, capsys):
    known = [ask(gateway, path) for path in ("/accept", "/needs", "/none", "/signed")]
    known.append(ask(gateway, "/accept", target=f"{TARGET}&seconds=mark-%C3%BC+4711"))
    known.append(ask(gateway, "/value"))
    tries = [ask(gateway, "/wait", "Idempotency-Key: k") for _ in range(2)]

    assert [each.status for each in known] == [202, 400, 204, 401, 202, 200]
    # The task has it, and so has its answer; a later try gets the same.
    assert [(each.status, each.body.decode()) for each in tries] == [(200, BODY)] * 2
    entries = {each.headers["x-delivery-id"]: each for each in (*known, *tries)}
    until(lambda: len(shown(gateway)["deliveries"]) == len(entries))
    until(lambda: {"failed", "succeeded"} <= {e["state"] for e in shown(gateway)["deliveries"]})
    until(lambda: len(collector.spans) > 20)
    whole = [shown(gateway, f"/{each}") for each in entries]
    until(lambda: 'id="g' in page(gateway, "failures"))
    groups = re.findall(r'id="g(\w{16})"', page(gateway, "failures"))
    paths = [*PAGES, *(f"failures/{each}" for each in groups)]
    paths += [f"deliveries/{each}{what}" for each in entries for what in ("", "/compare")]
    everything = {path: page(gateway, path) for path in paths} | {
        "sql": repr(archived(servers, archive)),
        "file": repr(archive.read_bytes()),
        "redis": repr(kept(servers)),
        "log": gateway.log.read_text(),
        "list": json.dumps(shown(gateway), ensure_ascii=False),
        "each": json.dumps(whole, ensure_ascii=False),
        "spans": repr(collector.spans),
    }
    for each in entries:
        assert main(["deliveries", "show", *servers.urls, each]) == 0
    everything["command"], told = capsys.readouterr()
    forms = [*FORMS, repr(MARK.encode())[2:-1]]
    assert [(k, form) for k, text in everything.items() for form in forms if form in text] == []
    assert "[redacted]" in everything["redis"] and "[redacted]" in everything["log"]

    assert f"audit: look by 127.0.0.1 (no token) id='{whole[0]['id']}'" in gateway.log.read_text()
    assert "audit: look by " in told

    failed = [each for each in whole if each["state"] == "failed"]
    assert {each["error"] for each in failed} >= {"ValueError"}
    bodies = [each["call"]["args"][2] for each in whole if each["route"].startswith("/accept")]
    card = {"card": {"number": "[redacted]", "name": "shown"}, "memo": "paid by [redacted]"}
    assert [json.loads(each) for each in bodies] == [card, card]
    # An example of a group is read from the archive when the journal has it no more.
    with servers.results.client as client:
        for key in client.scan_iter("*{journal}:delivery:*"):
            client.delete(key)
    assert "deliveries/" in page(gateway, f"failures/{groups[0]}").partition("The latest")[2]
    (value,) = [each for each in whole if each["route"].startswith("/value")]
    assert value["call"]["args"] == [card["card"], "[redacted]", "[redacted]"]


def test_a_redacted_delivery_is_not_replayed(servers, gateway, tmp_path, capsys):
    answer = ask(gateway, "/accept")
    delivery = answer.headers["x-delivery-id"]
    until(lambda: shown(gateway, f"/{delivery}")["state"] == "succeeded")
    assert shown(gateway, f"/{delivery}")["replayable"] is False
    assert shown(gateway, f"/{delivery}")["redacted"] == [
        "header:x-national-id", "json:/card/number", "param:id", "query:t",
    ]  # fmt: skip
    code, out, err = servers.deliveries(capsys, "replay", delivery, "--dry-run")
    assert code == 0 and delivery not in out
    assert f"{delivery} cannot be replayed as it was: header:x-national-id, json:/" in err
    assert err.endswith("\n0 would be replayed\n")
    asked = f"{gateway.admin_url}/api/replays?state=succeeded&dry_run=true"
    told = json.loads(fetch(asked, method="POST", body=b"").body)
    assert delivery in {each["delivery_id"] for each in told["replayed"] if each["problem"]}
    assert delivery not in told["would_be"]
    code, out, _ = servers.deliveries(capsys, "replay", delivery)
    assert code == 1
    assert out.startswith(f"{delivery} cannot be replayed as it was: header:x-national-id, json:/")


@pytest.mark.parametrize(("keep", "states"), [("failed", ["failed"]), ("none", [])])
def test_calls_are_not_kept(servers, keep, states):
    config = f'{URLS}journal = 100\nstate_prefix = "{keep}"\nkeep_bodies = "{keep}"\n'
    for path, answer in (("/keyed", "wait"), ("/accept", "accept")):
        config += route(path, answer=answer, idempotency=KEY)
    gateway = servers.gateway("redis", config)
    for path in ("/keyed", "/accept"):
        for seconds in (0, "none"):
            run(deliver(gateway, f"{keep}{path}{seconds}", seconds, path=path))

    def ended() -> bool:
        found = shown(gateway)["deliveries"]
        return sorted(each["state"] for each in found) == ["failed", "failed"] + ["succeeded"] * 2

    until(ended)
    for each in shown(gateway)["deliveries"]:
        whole = shown(gateway, f"/{each['id']}")
        assert (whole["call"] is not None) is (each["state"] in states)
        assert whole["replayable"] is (each["state"] in states)
    own = [hash for key, hash in kept(servers).items() if f"{keep}:{{journal}}:delivery" in key]
    assert states or [hash for hash in own if hash.get(b"call")] == []


def test_the_query_of_a_get_is_kept_no_longer_than_its_call(servers):
    for keep, left in (("failed", ["failed"]), ("none", [])):
        prefix = f"get-{keep}"
        config = f'{URLS}journal = 100\nstate_prefix = "{prefix}"\nkeep_bodies = "{keep}"\n'
        more = {"methods": ["GET"], "message_headers": {"n": "query:n"}}
        config += route("/get", answer="accept", **more)
        gateway = servers.gateway("redis", config)
        for seconds in (0, "none"):
            path = f"/get?seconds={seconds}&n=erika%20{keep}"
            assert fetch(f"{gateway.url}{path}").status == 202

        def ended(gateway=gateway) -> bool:
            states = sorted(each["state"] for each in shown(gateway)["deliveries"])
            return states == ["failed", "succeeded"]

        until(ended)
        where = f"{prefix}:{{journal}}:delivery"
        own = [hash for key, hash in kept(servers).items() if where in key]
        found = [hash for hash in own if b"erika" in b"".join(hash.values())]
        assert [hash[b"state"].decode() for hash in found] == left

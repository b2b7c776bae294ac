"""The admin port's pages: who may see them, what they show, and what they change.

tests/admin_page.py uses them in a browser.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import http.client
import json
import re
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from tornado.web import create_signed_value

from gateway.admin.pages import view
from gateway.config.redaction import HIDDEN
from gateway.stack.server import poll
from tests.integration.deliveries import URLS, gather, run, send
from tests.support.config import route, source
from tests.support.requests import fetch, post
from tests.support.stack import Server

TOKEN = "of-these-tests-only"
SECRET = "never-to-be-shown"
OWN = (f"Authorization: Bearer {TOKEN}", f"{view._OWN}: 1")
SITES = ("cross", "same")
MARKUP = "<script>alert(1)</script>"
CONFIG = (
    f"""\
journal = 1000
journal_refused = true
state_prefix = "pages"
notify = {{ kind = "slack", url = "http://127.0.0.1:1/" }}
{URLS}
"""
    + source("strange", "github", secrets=[SECRET])
    + source("forge", "github", secrets=[SECRET])
    + route("/strange", source="strange", args=["json:/order"])
    + route("/wait/{shop}")
    + route("/forge", source="forge", events=["push"])
    + route("/hidden", redact=["json:/card"])
    + route("/nobody", queue="nobodys", answer="accept")
)


@pytest.fixture(scope="module")
def gateway(servers: Any) -> Server:
    """A gateway with a token, deliveries of each kind, and a queue that no worker consumes."""
    made = servers.gateway("pika", f'admin_token = "{TOKEN}"\n{CONFIG}')
    signed = hmac.digest(SECRET.encode(), b"{}", hashlib.sha256).hex()
    forge = ("X-GitHub-Event: push", f"X-Hub-Signature-256: sha256={signed}")
    other = ("X-GitHub-Event: star", forge[1])
    answers = run(
        gather(
            send(made, "/wait/north?a=b", json.dumps({"order": 4711, "note": MARKUP, "list": [1]})),
            send(made, "/wait/north?seconds=no", "bad"),
            send(made, "/forge", "{}", *forge),
            send(made, "/forge", "{}", *other),
            send(made, "/forge", "{} ", *forge),
            send(made, "/hidden", json.dumps({"card": "4111111111111111"})),
            send(made, "/nobody", "waits"),
        )
    )
    assert [each.status for each in answers] == [200, 502, 200, 204, 401, 200, 202]
    assert poll(lambda: len(ids(made)) == 7, 30)
    return made


Found = tuple[int, dict[str, str], str]


def ask(
    server: Server, path: str, *headers: str, method: str = "GET", body: bytes | None = None
) -> Found:
    """Return status, headers and text of a page, without following where it leads."""
    lines = filter(None, headers or OWN[:1])
    answer = fetch(f"{server.admin_url}{path}", *lines, method=method, body=body)
    return answer.status, answer.headers, answer.body.decode()


def address(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.admin_url)
    return str(parts.hostname), int(parts.port or 0)


def head(server: Server, path: str, *headers: str) -> bytes:
    """Return what is answered to the head of a request whose body does not come."""
    with socket.create_connection(address(server), timeout=10) as client:
        lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", "")
        client.sendall("\r\n".join(lines).encode())
        return client.recv(64)


def text(found: Found) -> str:
    """Return what somebody reads in the main part of a page."""
    assert found[0] == 200, found
    main = found[2].partition("<main")[2].partition("</main>")[0]
    words = " ".join(html.unescape(re.sub("<[^>]+>", " ", main)).split())
    return re.sub(r" (?=[.,:] )", "", words)


def ids(server: Server, **query: str) -> list[str]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return re.findall(r'data-row id="d([^"]+)"', ask(server, f"/deliveries?{asked}")[2])


def one(server: Server, **query: str) -> str:
    # What was sent again has its state when its result has come.
    assert poll(lambda: len(ids(server, **query)) == 1, 30)
    (found,) = ids(server, **query)
    return found


def test_a_browser_unlocks_the_pages_once(gateway):
    for path in ("/deliveries/x/replay", "/notify/test", "/failures/0123456789abcdef/mute"):
        assert ask(gateway, path)[0] == ask(gateway, path, method="HEAD")[0] == 405
    for path in ("/", "/deliveries", "/routes", "/workers", "/servers", "/sources", "/again"):
        status, headers, page = ask(gateway, path, "")
        assert (status, headers["cache-control"]) == (401, "no-store")
        assert "admin_token" in page and "data-row" not in page
    assert ask(gateway, "/page/style.css", "")[0] == 200
    token, own = OWN
    assert ask(gateway, "/session", own, "Authorization: Bearer wrong", method="POST")[0] == 401
    status, headers, _ = ask(gateway, "/session", own, token, method="POST")
    cookie = headers["set-cookie"]
    assert status == 204 and "HttpOnly" in cookie and "SameSite=Lax" in cookie
    assert TOKEN not in cookie
    value = cookie.partition(";")[0]
    assert ask(gateway, "/deliveries", f"Cookie: {value}")[0] == 200
    name, _, its = value.partition("=")
    old = create_signed_value(TOKEN, name, "", clock=lambda: time.time() - view.SESSION - 1)
    for wrong in (old.decode(), its[:-1] + "x", its.replace(":0|", ":1|"), "x", ""):
        assert ask(gateway, "/deliveries", f"Cookie: {name}={wrong}")[0] == 401


def test_another_web_page_reads_and_changes_nothing(gateway):
    token, own = OWN
    replay = f"/deliveries/{one(gateway, state='failed')}/replay"
    foreign = ("Origin: http://evil.example", *(f"Sec-Fetch-Site: {each}-site" for each in SITES))
    for headers in ([], *([own, each] for each in foreign)):
        status, _, problem = ask(gateway, replay, token, *headers, method="POST")
        assert (status, json.loads(problem)["type"]) == (403, "forbidden")
    # Who follows a link of another page has not sent anything.
    link = (token, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    status, headers, _ = ask(gateway, "/deliveries", *link)
    assert status == 200 and "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


def test_deliveries_are_found_by_what_the_url_says(gateway):
    assert len(ids(gateway, state="failed")) == 1
    assert len(ids(gateway, state="failed,refused")) == 2
    assert len(ids(gateway, source="forge", status="2xx")) == 2
    assert len(ids(gateway, text="4711")) == 1
    assert len(ids(gateway, route="/wait/*", since="1h")) == 2
    listed = ask(gateway, "/deliveries")
    assert "Not done 1" in text(listed) and "Refused 1" in text(listed)
    assert "All 7" in text(listed) and "Ignored 1" in text(listed)
    # What went wrong stands in the row, and what was sent is no markup.
    assert "bad" in listed[2] and "ValueError" in text(listed)
    none = text(ask(gateway, "/deliveries?state=expired&route=/wait/*"))
    assert "without state expired" in none and "without route /wait/*" in none
    status, headers, _ = ask(gateway, "/deliveries?since=2h&q=route:/wait*+event:%22a+b%22+4711+x")
    wanted = "deliveries?since=2h&route=%2Fwait%2A&event=a+b&text=4711+x"
    assert (status, headers["location"]) == (302, wanted)
    shared = re.search(r'data-link="([^"]+)"', ask(gateway, "/deliveries?since=2h&state=failed")[2])
    assert re.fullmatch(r"deliveries\?since=20[0-9T%A.-]+Z&amp;state=failed", shared[1])
    status, _, page = ask(gateway, "/deliveries?status=nine")
    assert status == 400 and "is not a status" in page
    for path in ("/", "/deliveries"):
        status, _, page = ask(gateway, f"{path}?route=%ff")
        assert status == 400 and "Invalid unicode in route" in page
    assert ask(gateway, "/?route=%ff", "")[0] == 401 and "Traceback" not in gateway.output()


def test_older_ones_follow_by_a_cursor(gateway):
    found, path = [], "/deliveries?limit=3"
    while path:
        _, _, page = ask(gateway, path)
        found += re.findall(r'data-row id="d([^"]+)"', page)
        older = re.search(r'href="([^"]+)" data-key="n"', page)
        path = f"/{html.unescape(older[1])}" if older else ""
    assert found == ids(gateway) and len(set(found)) == 7


def test_one_delivery_is_told_in_a_sentence_and_a_timeline(gateway):
    found = ask(gateway, f"/deliveries/{one(gateway, text='4711')}")
    told = text(found)
    assert "faults.run succeeded. The sender was answered 200 after" in told
    assert "so it will not send this again" in told
    assert re.search(r"Received .* Published to the queue celery .* Answered 200 \+", told)
    assert "Send again" in told and '"order": 4711' in told and "shop=north" in told
    assert MARKUP not in found[2] and html.escape(MARKUP) in found[2]
    curl = html.unescape(re.search(r'data-copy="([^"]+)" data-key="c"', found[2])[1])
    assert curl.startswith("curl -g -X POST") and curl.endswith("/wait/north?a=b'")
    failed = text(ask(gateway, f"/deliveries/{one(gateway, state='failed')}"))
    assert "ValueError" in failed and "if it repeats what was not taken" in failed
    refused = text(ask(gateway, f"/deliveries/{one(gateway, state='refused')}"))
    assert "It was refused: unverified: The signature does not match" in refused
    assert "Send again r" not in refused and "No task was called" in refused
    assert "gateway send" in refused
    ignored = text(ask(gateway, f"/deliveries/{one(gateway, state='ignored')}"))
    assert "No route takes it" in ignored
    waits = ask(gateway, f"/deliveries/{one(gateway, route='/nobody')}")
    assert "its task may still run" in text(waits) and "data-live" in waits[2]
    assert ask(gateway, "/deliveries/none")[0] == 404


def test_what_was_redacted_is_not_shown_and_not_sent_again(gateway):
    one_id = one(gateway, route="/hidden")
    found = ask(gateway, f"/deliveries/{one_id}")
    assert "4111" not in found[2] and HIDDEN not in found[2]
    assert "It cannot be sent again as it was: json:/card was redacted" in text(found)
    status, _, problem = ask(gateway, f"/deliveries/{one_id}/replay", *OWN, method="POST")
    assert status == 409 and "redacted" in json.loads(problem)["detail"]


def test_looks_and_replays_are_noted_but_not_those_of_an_open_page(gateway):
    one_id = one(gateway, source="forge", state="succeeded")
    looks = f"look by 127.0.0.1 (token) id='{one_id}'"
    before = gateway.output().count(looks)
    live = ask(gateway, f"/deliveries/{one_id}", OWN[0], f"{view._OWN}: live")
    assert live[0] == 200 and "What was sent" not in text(live)
    ask(gateway, f"/deliveries/{one_id}")
    assert poll(lambda: gateway.output().count(looks) == before + 1, 10)
    status, _, done = ask(gateway, f"/deliveries/{one_id}/replay", *OWN, method="POST")
    assert status == 200 and json.loads(done)["task_id"]
    assert poll(lambda: f"replay by 127.0.0.1 (token) id='{one_id}'" in gateway.output(), 10)
    assert poll(lambda: "It was sent again once" in text(ask(gateway, f"/deliveries/{one_id}")), 30)
    told = text(ask(gateway, f"/deliveries/{one_id}"))
    assert "Sent again by 127.0.0.1 (token), as another task" in told


def test_deliveries_are_compared(gateway):
    failed = one(gateway, state="failed")
    told = text(ask(gateway, f"/deliveries/{failed}/compare"))
    assert "With the newest one of the same route and event that has succeeded" in told
    assert re.search(r"differs State failed succeeded", told)
    assert re.search(r"Body \d+ lines differ", told)
    waits = one(gateway, route="/nobody")
    assert "none of /nobody" in text(ask(gateway, f"/deliveries/{waits}/compare"))
    assert ask(gateway, f"/deliveries/{waits}/compare?other=none")[0] == 404


def test_a_group_of_failures_is_opened_muted_and_resolved(gateway):
    page = "/failures"
    assert poll(lambda: "ValueError" in ask(gateway, page)[2], 30)
    listed = ask(gateway, page)[2]
    group = re.search(r'data-row id="g([0-9a-f]{16})"', listed)[1]
    nav = " ".join(re.sub("<[^>]+>", " ", listed.partition("<main")[0]).split())
    assert "Failures 1 open" in nav
    assert "1 open" not in re.sub("<[^>]+>", "", ask(gateway, page, "")[2])  # it is locked
    told = text(ask(gateway, f"{page}/{group}"))
    assert re.search(r"That was \S+ \S+ after (worker|gateway) \S+ .*had started", told)
    for what, told in (("mute?until=1h", "mute by"), ("resolve", "resolve by")):
        assert ask(gateway, f"{page}/{group}/{what}", *OWN, method="POST")[0] == 200
        line = f"{told} 127.0.0.1 (token) id='{group}'"
        assert poll(lambda line=line: line in gateway.output(), 10)
        assert "Nothing fails" in text(ask(gateway, page))
    # The address of [notify] takes nothing.
    untold = "Nobody is told. The last message to slack could not be sent"
    assert poll(lambda: untold in text(ask(gateway, page)), 30)
    assert poll(lambda: "Nobody is told of failures" in text(ask(gateway, "/")), 30)
    assert poll(lambda: "1 in nobodys, no consumer" in text(ask(gateway, "/")), 30)
    assert 'class="mark"' in ask(gateway, "/")[2]  # where the gateway has started


def test_many_are_sent_again_after_a_question(gateway):
    live = (OWN[0], f"{view._OWN}: live")
    some = "/again?route=/wait/*&since=1h"
    first_view = ask(gateway, some)
    assert "Looking through the journal" in text(first_view) and "data-post" not in first_view[2]
    asked = ask(gateway, some, *live)
    assert "Send 2 deliveries again?" in text(asked) and "Send 1 first" in text(asked)
    both, first = map(html.unescape, re.findall(r'data-post="([^"]+)"', asked[2]))
    assert "since=1h" not in both  # later it would be others
    status, _, done = ask(gateway, f"/{first}", *OWN, method="POST")
    answer = json.loads(done)
    assert status == 200 and answer["taken"] == 1 and answer["go"].startswith("./deliveries/")
    status, _, done = ask(gateway, f"/{both}", *OWN, method="POST")
    assert status == 200 and json.loads(done) == {"taken": 2, "problems": []}
    assert ask(gateway, "/again")[0] == 400  # without a filter: all of them
    nothing = text(ask(gateway, "/again?route=/none", *live))
    assert "Nothing is to be sent again" in nothing


def test_routes_are_shown_as_they_are_in_force_without_secrets(gateway):
    found = ask(gateway, "/routes?open=/forge")
    told = text(found)
    assert "/wait/{shop}" in told and "source.secrets hidden 1 key" in told
    assert 'events ["push"]' in told and "answer wait default" in told
    assert SECRET not in found[2]
    assert re.search(r"How long each part took .* Published [\d.]+ ms, [\d.]+ ms .*Answered", told)
    idle = text(ask(gateway, "/routes?open=/nobody"))
    assert re.search(r"nobodys \d waiting, no consumer", idle)


def test_a_source_says_why_it_is_refused(gateway):
    wrong = ("X-GitHub-Event: push", f"X-Hub-Signature-256: sha256={64 * '0'}")
    asked = gather(send(gateway, "/elsewhere", "x"), send(gateway, "/strange", "x", *wrong))
    assert [each.status for each in run(asked)] == [404, 401]
    assert poll(lambda: "POST /elsewhere" in text(ask(gateway, "/sources")), 30)
    never = "None that is kept was signed with this secret"
    assert poll(lambda: never in text(ask(gateway, "/sources?open=strange")), 30)
    # What is refused for something else says what to do as well, and nothing of the signature.
    assert run(send(gateway, "/strange", "x" * 2_000_000)).status == 413
    other = "If it is meant, raise max_body"
    assert poll(lambda: other in text(ask(gateway, "/sources?open=strange")), 30)
    assert never in text(ask(gateway, "/sources?open=strange"))
    signed = hmac.digest(SECRET.encode(), b"{}", hashlib.sha256).hex()
    wanting = ("X-GitHub-Event: push", f"X-Hub-Signature-256: sha256={signed}")
    assert run(send(gateway, "/strange", "{}", *wanting)).status == 400
    needs = "json:/order is missing"
    assert poll(lambda: needs in text(ask(gateway, "/sources?open=strange")), 30)
    assert never not in text(ask(gateway, "/sources?open=strange"))
    told = text(ask(gateway, "/sources?open=forge"))
    assert "Correct the address at the sender, or add a route." in told
    assert "No gateway has started since: the secret was changed at the sender" in told
    assert "The last one that was refused: The signature does not match." in told
    assert "It came here POST /forge from 127.0.0.1" in told
    assert "the signature is wrong" in told and "gateway send --as forge" in told
    assert "Unsigned: /wait/{shop}, /hidden, /nobody" in told


def test_workers_and_servers_are_asked(gateway):
    told = text(ask(gateway, "/workers"))
    assert "online" in told and "Nobody takes from nobodys" in told
    name = re.search(r"\S+@\S+", told)[0]
    opened = text(ask(gateway, f"/workers?open={name}"))
    assert "faults.run" in opened
    told = text(ask(gateway, "/servers"))
    assert re.search(r"RabbitMQ [\d.]+ well", told) and re.search(r"(Redis|Valkey) [\d.]+", told)
    assert "Deliveries are kept in the journal only" in told


def test_a_proxy_says_who_asks_and_roles_what_they_may(gateway, servers):
    roles = """
admin_user_header = "X-User"
admin_roles = { view = ["*@example.com"], bodies = ["b@*"], act = ["a@example.com"] }
"""
    trusting = servers.gateway("pika", roles + CONFIG)
    one_id, own = one(gateway, text="4711"), f"{view._OWN}: 1"

    def status(path: str, user: str, *headers: str, method: str = "GET") -> int:
        return ask(trusting, path, f"X-User: {user}", *headers, method=method)[0]

    assert ask(trusting, "/deliveries", "")[0] == 401
    assert status("/deliveries", "c@elsewhere.example") == 403
    assert status("/deliveries", "a@example.com", "Host: rebound.example") == 403

    def shown(path: str, user: str) -> str:
        return text(ask(trusting, path, f"X-User: {user}@example.com"))

    seen = [shown(f"/deliveries/{one_id}", user) for user in "abv"]
    assert ["4711" in each for each in seen] == [True, True, False]
    assert ["Query a=b" in each for each in seen] == [True, True, False]
    assert ["Send again r" in each for each in seen] == [True, False, False]
    # A client's own header beside the proxy's, which together would fit a pattern, is refused.
    client = http.client.HTTPConnection(urlsplit(trusting.admin_url).netloc)
    client.putrequest("GET", "/deliveries")
    for user in ("c@elsewhere.example", "d@example.com"):
        client.putheader("X-User", user)
    client.endheaders()
    assert client.getresponse().status == 403
    client.close()
    for path in ("/deliveries?text=4711", f"/api/deliveries/{one_id}", "/api/deliveries?text=4711"):
        assert [status(path, f"{user}@example.com") for user in "bv"] == [200, 403]
    edit, compare = (f"/deliveries/{one_id}/{each}" for each in ("edit", "compare"))
    assert [status(edit, f"{user}@example.com") for user in "abv"] == [200, 403, 403]
    compared = [shown(f"{compare}?other={one_id}", user) for user in "bv"]
    assert ["Headers the same" in each for each in compared] == [True, False]
    others = ("/again?text=4711", "/api/replays?state=failed")
    for path in (edit, f"/deliveries/{one_id}/replay", *others):
        for user in ("b@example.com", "v@example.com"):
            assert status(path, user, own, method="POST") == 403
    group = "0" * 16
    for path in (f"/failures/{group}/mute?span=1h", f"/failures/{group}/resolve", "/notify/test"):
        for each in (path, f"/api{path}"):
            assert status(each, "b@example.com", own, method="POST") == 403
    for foreign in ("Sec-Fetch-Site: same-site", "Origin: https://elsewhere.example"):
        path = f"/api/deliveries/{one_id}/replay?again=true"
        assert status(path, "a@example.com", foreign, method="POST") == 403
        # Nor may it have the proxy's user look, which would be noted.
        for path in (f"/deliveries/{one_id}", f"/api/deliveries/{one_id}"):
            assert status(path, "a@example.com", foreign) == 403
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    assert status(f"/deliveries/{one_id}", "a@example.com", *link) == 200
    replay = f"/deliveries/{one_id}/replay?again=true"
    told = ("Sec-Fetch-Site: same-origin", "Origin: https://admin.example.com")
    assert status(replay, "a@example.com", own, *told, method="POST") == 200
    assert f"look by 127.0.0.1 (b@example.com) id='{one_id}'" in trusting.output()
    trusting.stop()
    # Anybody else may write the header.
    other = servers.gateway("pika", f'trusted_proxies = ["192.0.2.1"]{roles}{CONFIG}')
    assert ask(other, "/deliveries", "X-User: a@example.com")[0] == 401


@pytest.fixture(scope="module")
def alone(start_gateway) -> Server:
    """A gateway without servers and without sources, with a journal that it cannot write."""
    nobody = ("--broker", "amqp://127.0.0.1:1//", "--result-backend", "redis://127.0.0.1:1/0")
    return start_gateway(f"journal = 10\n{route('/', None)}", *nobody, ready="/healthz")


def test_a_delivery_is_edited_and_sent_as_a_new_one(gateway):
    one_id = one(gateway, text="4711", state="succeeded")
    page = f"/deliveries/{one_id}/edit"
    form = ask(gateway, page)
    before = html.unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form[2], re.S)[1])
    assert json.loads(before)["order"] == 4711 and MARKUP not in form[2]
    status, _, same = ask(gateway, page, *OWN, method="POST", body=before.encode())
    assert status == 409 and "Nothing was edited" in json.loads(same)["detail"]
    assert ask(gateway, page, *OWN, method="POST", body=b"\xff")[0] == 400
    after = before.replace("4711", "4712").encode()
    status, _, done = ask(gateway, page, *OWN, method="POST", body=after)
    new_id = json.loads(done)["go"].removeprefix("../")
    assert status == 200 and new_id != one_id
    assert poll(lambda: new_id in ids(gateway, state="succeeded"), 30)
    assert f"replay by 127.0.0.1 (token) id='{one_id}' edited=True" in gateway.output()
    told = text(ask(gateway, f"/deliveries/{new_id}"))
    assert f"Edited copy of {one_id}" in told and '"order": 4712' in told
    assert re.search(r"Sent by 127\S+ \(token\), as another task .* Its end was noticed", told)
    assert "no sender waits for an answer" in told and "It was sent again" not in told
    asked = ask(gateway, f"/api/deliveries/{new_id}")
    about = json.loads(asked[2])
    assert (about["edited_from"], about["status"], about["replays"]) == (one_id, None, 1)
    for query in (f"?other={one_id}", ""):
        compared = ask(gateway, f"/deliveries/{new_id}/compare{query}")
        assert re.search(r"differs \d+ \"order\": 4712, \"order\": 4711,", text(compared))
    hidden = one(gateway, route="/hidden")
    status, _, page = ask(gateway, f"/deliveries/{hidden}/edit")
    assert status == 409 and "its route has `redact`" in html.unescape(page)
    # Other pages take no body, and this one none that is too long.
    for path, size in (("/session", 1), (f"/deliveries/{one_id}/edit", 300_000)):
        assert head(gateway, path, *OWN, f"Content-Length: {size}").startswith(b"HTTP/1.1 400")


def test_what_does_not_answer_is_told(alone):
    status, _, page = ask(alone, "/deliveries")
    assert status == 503 and "redis://127.0.0.1:1/0" in page
    assert post(f"{alone.url}/", b"x").code == 503
    told = text(ask(alone, "/routes"))
    assert "5xx" in told and "amqp://127.0.0.1:1//" in told
    assert "No source is configured" in text(ask(alone, "/sources"))
    told = text(ask(alone, "/servers"))
    assert told.count("down") == 2
    assert "No worker answers" in text(ask(alone, "/workers"))

"""Use the admin port's pages in a browser, under load: ``python -m tests.admin_page``.

A failed delivery is found, opened, replayed, seen to succeed, and edited, by keys. Each page is
laid out on a screen and on a phone, in light and in dark, as the load test's pages are. Nothing may
be an error in the browser's console, and nothing may be requested but from the gateway. ``--axe
FILE`` also has axe-core (its `axe.min.js`) judge the pages: it may find nothing. ``--pictures
DIRECTORY`` keeps what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.stack.server import poll
from tests.integration.deliveries import ROOT, gather, send
from tests.integration.tasks import REPAIRED
from tests.pages import SCHEMES, SCREENS, Browser, BrowserError, browser, laid_out
from tests.support.stack import Server, Stack

TOKEN = "of-this-page-only-ü€"
SECRET = "sesame"
#: The event of a delivery, which is no markup.
EVENT = "<script>document.title = 'run'</script>"
RATE = 40  # deliveries a second while the page is used
CONFIG = f"""
journal_refused = true
admin_token = "{TOKEN}"
secret_key = "of this page only"
public_url = "https://hooks.example.com"

[sources.forge]
scheme = "github"
secrets = ["{SECRET}"]

[[routes]]
path = "/orders"
task = "lifecycle.run"
answer = "accept"

[[routes]]
path = "/forge"
source = "forge"
task = "lifecycle.run"
"""
_STATES = "[...document.querySelectorAll('[data-row] td.s')].map(c => c.textContent.trim())"
#: Is the end of the sentence about a delivery written from the left to the right?
_FORWARDS = """(() => {
  const range = new Range(), text = document.querySelector(".lead").lastChild;
  const left = at => {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    return range.getBoundingClientRect().left;
  };
  return left(3) < left(4);
})()"""
#: Errors of the console that have to be there: a page that is locked, and one that there is not.
_EXPECTED = ("401 (Unauthorized)", "404 (Not Found)")


class Page:
    """The page in a tab."""

    def __init__(self, tab: Browser, url: str):
        self.tab, self.url = tab, url
        for domain in ("Runtime", "Log"):
            tab.call(f"{domain}.enable")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.tab.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def until(self, script: str, patience: float = 30.0) -> None:
        """Wait until an expression is true."""
        if not poll(lambda: bool(self.run(script)), patience):
            where = self.run("location.href")
            raise BrowserError(f"this did not become true at {where}: {script}")

    def open(self, path: str) -> None:
        self.tab.open(f"{self.url}{path}")

    def key(self, key: str) -> None:
        """Press a key, and release it, when the page's script has run."""
        self.until("document.readyState == 'complete'")
        about = {"key": key, "text": "\r" if key == "Enter" else key if len(key) == 1 else ""}
        code = {"windowsVirtualKeyCode": 13} if key == "Enter" else {}
        self.tab.call("Input.dispatchKeyEvent", type="keyDown", **about, **code)
        self.tab.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Write into what has the focus, and press Enter."""
        self.tab.call("Input.insertText", text=text)
        self.key("Enter")

    def click(self, selector: str) -> None:
        """Click, when the page's script has run."""
        self.until("document.readyState == 'complete'")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def unlock(self) -> None:
        """Open the list of deliveries, which asks for the token."""
        self.open("/deliveries")
        self._try("wrong")
        self.until("/not the token/.test(document.querySelector('[data-told]').textContent)")
        self._try(TOKEN)
        self.until("document.querySelectorAll('[data-row]').length > 10")
        self.until("document.readyState == 'complete'")

    def _try(self, token: str) -> None:
        self.fill("[data-unlock] input", token)
        self.click("[data-unlock] button")

    def errors(self) -> Iterator[str]:
        """Yield what the console has told since the page was opened."""
        for event in self.tab.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                yield str(about["exceptionDetails"])
            if event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
                text = about["entry"]["text"]
                if not any(each in text for each in _EXPECTED):
                    yield text


@contextmanager
def served(
    directory: Path, kept: str = "journal = 20000"
) -> Iterator[tuple[Stack, Server, Server]]:
    """Start servers, a worker whose tasks may fail, and a gateway.

    Yield what starts further ones, Redis and the gateway; `kept` are further settings.
    """
    config = directory / "gateway.toml"
    config.write_text(f"{kept}\n{CONFIG}")
    with Stack() as stack:
        broker, store = stack.rabbitmq(), stack.redis()
        stack.worker(
            broker.url,
            store.url,
            app="tests.integration.tasks",
            cwd=ROOT,
            env={"FAULTS_DIRECTORY": str(directory)},
        )
        urls = ["--broker", broker.url, "--result-backend", store.url]
        more = ("--strategy=redis", "--processes=2", *urls, "--config", str(config))
        yield stack, store, stack.gateway(*more)


@contextmanager
def loaded(gateway: Server) -> Iterator[None]:
    """Send deliveries meanwhile, a few of which fail, or are refused."""
    ending = threading.Event()

    async def load() -> None:
        number = 0
        while not ending.is_set():
            paths = ["/orders"] * (RATE // 4 - 1) + ["/elsewhere"]
            await gather(*(send(gateway, path, f"well {number}") for path in paths))
            number += 1
            await asyncio.sleep(0.25)

    async def first() -> None:
        body = "well signed"
        signature = hmac.digest(SECRET.encode(), body.encode(), hashlib.sha256).hex()
        signed = (f"X-Hub-Signature-256: sha256={signature}", f"X-GitHub-Event: {EVENT}")
        answers = await gather(
            send(gateway, "/forge", body, *signed), send(gateway, "/orders", "fails once")
        )
        if [answer.status for answer in answers] != [200, 202]:
            raise BrowserError(f"the deliveries were not taken: {answers}")

    asyncio.run(first())
    thread = threading.Thread(target=lambda: asyncio.run(load()))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def use(page: Page, directory: Path) -> Iterator[str]:
    """Find a failed delivery by keys, replay it; yield what is wrong."""
    page.unlock()
    page.until("!document.querySelector('[data-newer]').hidden")
    first = "document.querySelector('[data-row]')?.id"
    before = page.run(first)
    page.key(".")
    page.until(f"({first} ?? {json.dumps(before)}) != {json.dumps(before)}")

    page.key("/")
    page.type('event:"<script>*"')
    page.until("document.querySelectorAll('[data-row]').length == 1")
    shown = page.run("document.querySelector('td.e').textContent")
    if EVENT not in shown or page.run("document.title") != "Deliveries · gateway":
        yield f"an event's name is not shown as text: {shown!r}"

    page.open("/deliveries")
    page.click(".tabs a:nth-child(2)")
    page.until(f"{_STATES} == 'failed'")
    page.key("j")
    page.key("Enter")
    page.until("/failed/.test(document.querySelector('h1')?.textContent)")
    if "RuntimeError: not repaired yet" not in page.run("document.body.textContent"):
        yield "the exception's text is not shown"
    (directory / REPAIRED).touch()
    page.key("r")
    page.until("document.getElementById('again').open")
    page.click("#again .primary")
    page.until("/succeeded/.test(document.querySelector('h1')?.textContent)")
    page.key("e")
    page.until("document.querySelector('textarea')?.value == 'fails once'")
    page.fill("textarea", "edited")
    page.click("main .primary")
    page.until(
        "/edited copy of another delivery/.test(document.querySelector('.lead')?.textContent)"
    )
    page.until("/succeeded/.test(document.querySelector('h1')?.textContent)")
    page.key("d")
    page.until("document.querySelectorAll('.differs').length > 3")
    page.key("?")
    page.until("document.getElementById('keys').open")


def looked_at(page: Page, pictures: Path | None, axe: str) -> Iterator[str]:
    """Lay each page out in each way; yield what is wrong."""
    first = "document.querySelector('a.row').getAttribute('href')"
    page.open("/deliveries?state=failed")
    page.until("document.querySelectorAll('a.row').length == 1")
    odd = page.run(first)
    page.open(f"/{odd}")
    if not page.run(_FORWARDS):
        yield "an error turns what follows it"
    page.open("/deliveries?text=edited")
    copy = page.run(first)
    page.open("/deliveries?state=succeeded")
    one = page.run(first)
    views = {
        "overview": "/",
        "failures": "/failures",
        "deliveries": "/deliveries",
        "filtered": "/deliveries?state=failed&since=2h&route=/no*",
        "delivery": f"/{one}",
        "odd": f"/{odd}",
        "edit": f"/{one}/edit",
        "compare": f"/{copy}/compare",
        "edited": f"/{copy}",
        "again": "/again?state=refused,failed,succeeded&since=2h",
        "routes": "/routes?open=/forge",
        "sources": "/sources?open=forge",
        "workers": "/workers",
        "servers": "/servers",
        "missing": "/nothing",
    }
    for where, size in SCREENS.items():
        for scheme in SCHEMES:
            for view, path in views.items():
                name = f"admin-{view}-{where}-{scheme}"
                page.tab.lay_out(*size, mobile=where == "phone", scheme=scheme)
                page.open(path)
                yield from (f"{name}: {each}" for each in laid_out(page.tab))
                yield from (f"{name}: {each}" for each in page.errors())
                outside = [each for each in page.tab.requested() if not each.startswith(page.url)]
                yield from (f"{name}: it requests {each}" for each in outside if each != "data:,")
                if axe:
                    page.run(f"{axe};undefined")
                    for one in page.run("axe.run().then(its => its.violations)"):
                        yield f"{name}: {one['id']}: {one['nodes'][0]['html']}"
                if pictures:
                    shot = page.tab.call("Page.captureScreenshot")
                    (pictures / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is wrong; returns 1 where something is."""
    parser = argparse.ArgumentParser(prog="tests.admin_page", description=__doc__)
    parser.add_argument("--axe", type=Path, metavar="axe.min.js")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY")
    options = parser.parse_args(argv)
    axe = options.axe.read_text() if options.axe else ""
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            with browser() as tab, served(directory) as (_, _, gateway), loaded(gateway):
                page = Page(tab, gateway.admin_url)
                found += use(page, directory)
                asyncio.run(send(gateway, "/orders", "rambles"))
                found += looked_at(page, options.pictures, axe)
        except BrowserError as exc:
            found.append(str(exc))
    for each in found:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"the admin port's pages: {len(found)} problems\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""Use the admin port's page in a browser, under load: ``python -m tests.admin_page``.

A failed delivery is found, opened, replayed, and seen to succeed. The page is laid out on a screen
and on a phone, in light and in dark, as the load test's pages are. Nothing may be an error in the
browser's console. ``--axe FILE`` also has axe-core (its `axe.min.js`) judge the page, of which
nothing serious may come. ``--pictures DIRECTORY`` keeps what was seen.
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
from tests.integration.lifecycle_tasks import REPAIRED
from tests.pages import SCHEMES, SCREENS, Browser, BrowserError, browser, laid_out
from tests.support.stack import Server, Stack

TOKEN = "of-this-page-only"
SECRET = "sesame"
#: The event of a delivery, which is no markup.
EVENT = "<script>document.title = 'run'</script>"
RATE = 40  # deliveries a second while the page is used
CONFIG = f"""
journal = 2000
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
_STATES = "[...document.querySelectorAll('#deliveries td:nth-child(2)')].map(c => c.textContent)"
#: Errors of the console that have to be there: the page asks for a token when it gets these.
_EXPECTED = "401 (Unauthorized)"


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
            raise BrowserError(f"this did not become true: {script}")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def errors(self) -> Iterator[str]:
        """Yield what the console has told since the page was opened."""
        for event in self.tab.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                yield str(about["exceptionDetails"])
            if event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
                text = about["entry"]["text"]
                if _EXPECTED not in text:
                    yield text


@contextmanager
def served(directory: Path) -> Iterator[Server]:
    """Start servers, a worker whose tasks may fail, and a gateway; yield the gateway."""
    config = directory / "gateway.toml"
    config.write_text(CONFIG)
    with Stack() as stack:
        broker, store = stack.rabbitmq(), stack.redis()
        stack.worker(
            broker.url,
            store.url,
            app="tests.integration.lifecycle_tasks",
            cwd=ROOT,
            env={"LIFECYCLE_DIRECTORY": str(directory)},
        )
        urls = ["--broker", broker.url, "--result-backend", store.url]
        yield stack.gateway("--strategy=redis", "--processes=2", *urls, "--config", str(config))


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
    """Unlock the page; find a failed delivery, open and replay it; yield what is wrong."""
    page.tab.open(page.url)
    page.until("!document.getElementById('unlock').hidden")
    page.fill("#token", TOKEN)
    page.click("#unlock button")
    page.until("document.querySelectorAll('#deliveries tr').length > 10")
    before = page.run("document.querySelector('#deliveries tr').dataset.id")
    page.until(f"document.querySelector('#deliveries tr').dataset.id != {json.dumps(before)}")

    page.fill("#wanted-event", "<script>*")
    page.click("#filter button")
    page.until("document.querySelectorAll('#deliveries tr').length == 1")
    shown = page.run("document.querySelector('#deliveries td:nth-child(6)').textContent")
    if shown != EVENT or page.run("document.title") != "gateway":
        yield f"an event's name is not shown as text: {shown!r}"

    page.fill("#wanted-event", "")
    page.fill("#wanted-state", "failed,dead-lettered,expired")
    page.click("#filter button")
    page.until(f"{_STATES} == 'failed'")
    page.click("#deliveries button")
    page.until("document.getElementById('shown').open")
    facts = page.run("document.getElementById('facts').textContent")
    if "RuntimeError: not repaired yet" not in facts:
        yield f"the exception's text is not shown: {facts!r}"
    (directory / REPAIRED).touch()
    page.click("#replay")
    page.until("document.getElementById('asked').open")
    page.click("#yes")
    page.until("/Replayed as the task/.test(document.getElementById('shown-told').textContent)")
    page.fill("#wanted-state", "")
    page.click("#filter button")
    page.until("/succeeded/.test(document.getElementById('shown-title').textContent)")


def looked_at(page: Page, pictures: Path | None, axe: str) -> Iterator[str]:
    """Lay the page out in each way, with a delivery open and without; yield what is wrong."""
    for where, size in SCREENS.items():
        for scheme in SCHEMES:
            for dialog in (False, True):
                name = f"admin-{'delivery-' if dialog else ''}{where}-{scheme}"
                page.tab.lay_out(*size, mobile=where == "phone", scheme=scheme)
                page.tab.open(page.url)
                page.until("document.querySelectorAll('#deliveries tr').length > 10")
                page.until("document.querySelectorAll('#tiles div').length > 4")
                if dialog:
                    page.click("#deliveries button")
                    page.until("document.getElementById('shown').open")
                yield from (f"{name}: {each}" for each in laid_out(page.tab))
                yield from (f"{name}: {each}" for each in page.errors())
                outside = [each for each in page.tab.requested() if not each.startswith(page.url)]
                yield from (f"{name}: it requests {each}" for each in outside if each != "data:,")
                if axe:
                    page.run(f"{axe};undefined")
                    found = page.run("axe.run().then(its => its.violations)")
                    grave = [one for one in found if one["impact"] in ("serious", "critical")]
                    yield from (f"{name}: {one['id']}: {one['nodes'][0]['html']}" for one in grave)
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
            with browser() as tab, served(directory) as gateway, loaded(gateway):
                page = Page(tab, f"{gateway.admin_url}/")
                found += use(page, directory)
                found += looked_at(page, options.pictures, axe)
        except BrowserError as exc:
            found.append(str(exc))
    for each in found:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"the admin port's page: {len(found)} problems\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

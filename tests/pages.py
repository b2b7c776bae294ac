"""Open the load test's pages in a browser: ``make pages``, or ``python -m tests.pages FILE...``.

Each page is laid out on a screen and on a phone, in light and in dark. No text may be smaller than
`SMALLEST`, overlap another or be cut off, the errors have to be visible without scrolling on the
screen, text has to stand out from what is behind it, and nothing may be requested but the page.
Without files all pages in build/reports are opened. ``--pictures DIRECTORY`` keeps what was seen.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPORTS = Path(__file__).parents[1] / "build" / "reports"
SMALLEST = 11  # pixels
#: Width and height in pixels.
SCREENS = {"screen": (1280, 800), "phone": (390, 844)}
SCHEMES = ("light", "dark")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

# Returns what is wrong, as texts.
_CHECK = """
(() => {
  const wrong = [], name = (text) => JSON.stringify(text.trim().slice(0, 40));
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) wrong.push(`the page is ${page.scrollWidth} px wide`);

  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.background = "Canvas";
  const luminance = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const canvas = luminance(getComputedStyle(probe).backgroundColor);
  probe.remove();
  const behindOf = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return luminance(colour);
    }
    return canvas;
  };
  const scrolls = (element) => element && (
    /auto|scroll/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement));

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data;
    if (!text.trim() || /^(style|title|script)$/i.test(element.tagName)) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element), drawn = element instanceof SVGElement;
    let size = parseFloat(style.fontSize);
    if (drawn) {
      const matrix = element.getScreenCTM();
      size *= Math.hypot(matrix.b, matrix.d);
    }
    if (size < SMALLEST - 0.05) wrong.push(`${name(text)} has ${size.toFixed(1)} px`);
    const colour = luminance(drawn ? style.fill : style.color), behind = behindOf(element);
    const contrast = (Math.max(colour, behind) + 0.05) / (Math.min(colour, behind) + 0.05);
    if (contrast < 4.5) wrong.push(`${name(text)} has a contrast of ${contrast.toFixed(1)}`);
  }

  const outside = (inner, outer) =>
    inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
    inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const title = svg.querySelector("title")?.textContent ?? svg.ariaLabel ?? "a picture";
    const isOut = frame.right > innerWidth || frame.left < 0;
    if (isOut && !scrolls(svg)) wrong.push(`${name(title)} is cut off`);
    const boxes = [...svg.querySelectorAll("text")].map((text) => {
      return [text.textContent, text.getBoundingClientRect()];
    });
    boxes.forEach(([text, box], n) => {
      if (outside(box, frame)) wrong.push(`${name(text)} is cut off in ${name(title)}`);
      for (const [other, its] of boxes.slice(n + 1)) {
        const apart = box.right <= its.left + 1 || its.right <= box.left + 1 ||
          box.bottom <= its.top + 3 || its.bottom <= box.top + 3;
        if (!apart) wrong.push(`${name(text)} and ${name(other)} overlap in ${name(title)}`);
      }
    });
  }

  if (innerWidth > 1000) {
    for (const cell of document.querySelectorAll("th")) {
      if (!/^(errors|wrong)$/.test(cell.textContent.trim())) continue;
      const view = cell.closest(".scroll").getBoundingClientRect();
      const box = cell.getBoundingClientRect();
      if (box.left < view.left || box.right > view.right) {
        wrong.push(`the column ${name(cell.textContent)} is out of sight`);
      }
    }
  }
  return wrong;
})()
""".replace("SMALLEST", str(SMALLEST))


class BrowserError(Exception):
    """The browser does not do what it is told."""


class Browser:
    """A tab of a browser that is driven over its pipe.

    https://chromedevtools.github.io/devtools-protocol/
    """

    def __init__(self, writing: int, reading: int):
        self._writing, self._reading = writing, os.fdopen(reading, "rb")
        self._number = 0
        self._received = b""
        self._session: str | None = None
        #: What happened since `clear`.
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']['message']}")
                return dict(found["result"])
            self.events.append(found)

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def lay_out(self, width: int, height: int, *, mobile: bool, scheme: str) -> None:
        """Let the next page have a window of this size in pixels, and prefer this colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def requested(self) -> list[str]:
        """Return the URLs that were requested since the last page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            some = self._reading.read1()
            if not some:
                raise BrowserError("the browser has ended")
            self._received += some
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser without a window; raises BrowserError where there is none."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        raise BrowserError("chromium is missing: install chromium")
    (reads, writing), (reading, writes) = os.pipe(), os.pipe()
    # What it has started may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        argv = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={home}"]
        # As root it has no sandbox; it opens nothing but our own pages.
        argv += ["--no-sandbox", "--disable-gpu", "--no-first-run", "about:blank"]
        redirected = f"exec {shlex.join(argv)} 3<&{reads} 4>&{writes}"
        process = subprocess.Popen(
            ["bash", "-c", redirected], pass_fds=(reads, writes), stderr=subprocess.DEVNULL
        )
        try:
            os.close(reads)
            os.close(writes)
            yield Browser(writing, reading)
        finally:
            os.close(writing)
            process.terminate()
            process.wait()


def laid_out(tab: Browser) -> list[str]:
    """Return what is wrong with the page as it is laid out."""
    found = tab.call("Runtime.evaluate", expression=_CHECK, returnByValue=True)
    if "exceptionDetails" in found:
        raise BrowserError(found["exceptionDetails"]["exception"]["description"])
    return [*found["result"]["value"]]


def problems(tab: Browser, file: Path, pictures: Path | None = None) -> Iterator[str]:
    """Open a page in each way and yield what is wrong with it, a line each."""
    url = file.resolve().as_uri()
    for where, size in SCREENS.items():
        for scheme in SCHEMES:
            tab.lay_out(*size, mobile=where == "phone", scheme=scheme)
            tab.open(url)
            said = laid_out(tab)
            said += [f"it requests {each}" for each in tab.requested() if each != url]
            yield from (f"{file.name}, {where}, {scheme}: {each}" for each in said)
            if pictures:
                shot = tab.call("Page.captureScreenshot", captureBeyondViewport=True)
                name = f"{file.stem}-{where}-{scheme}.png"
                (pictures / name).write_bytes(base64.b64decode(shot["data"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is wrong; returns 1 where something is."""
    parser = argparse.ArgumentParser(prog="tests.pages", description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.html")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="keep screenshots there")
    options = parser.parse_args(argv)
    files = options.files or sorted(REPORTS.glob("*.html"))
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    try:
        with browser() as tab:
            found = [each for file in files for each in problems(tab, file, options.pictures)]
    except BrowserError as exc:
        found = [str(exc)]
    for each in found:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"{len(files)} pages, {len(found)} problems\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""What verifying costs: ``python -m loadtest.verification`` prints a row for each scheme.

CPU time of `Source.verify` alone, over a delivery with a body of 1 KB: the median of 7 runs, with
the lowest and the highest. Nothing else is measured, so nothing has to be started.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from gateway.delivery import Request
from gateway.sources import SCHEMES, find
from gateway.sources.base import Draft, Source
from loadtest.examples import example

SIZE = 1024  # bytes of the body that is signed
RUNS, VERIFIES = 7, 2_000
TARGET = 15.0  # microseconds, for a scheme that computes an HMAC
URL = "https://hooks.example.com/in"

#: Schemes that compute something else, or nothing.
_WITHOUT_HMAC = {"dingtalk", "discord", "feishu", "gitlab", "telegram", "wechat", "wecom"}

#: How bodies end, by what they begin with, and how they end with more in them.
_ENDS = {b"{": (b"}", b',"more":"%b"}'), b"<": (b"</xml>", b"<More>%b</More></xml>")}


class Row(NamedTuple):
    """A scheme with the receiver's options and, where they differ, the sender's."""

    name: str
    options: dict[str, Any]
    sender: dict[str, Any] | None = None
    hmac: bool = False

    @property
    def scheme(self) -> str:
        return self.name.partition(" ")[0]


def rows() -> list[Row]:
    """Return a row for each scheme by its own example, and for what that leaves out."""
    found = []
    for name in SCHEMES:
        if _signs_within(name):  # padding would not be signed
            continue
        said = example(name)
        options = {**said.options, **said.receiver}
        hmac = name not in _WITHOUT_HMAC
        found.append(Row(name, options, said.options, hmac))
    found.append(Row("dingtalk robot", {"secrets": "secret"}, hmac=True))
    found.append(Row("wechat plain", {"secrets": "token"}))
    return found


def _signs_within(name: str) -> bool:
    """Is a sender's signature in its body, or in JSON that has more in it?"""
    block = getattr(find(name), "block", None)
    if block is None:
        return False
    place: str = block.signature[0]
    return not place.startswith(("header:", "query:")) or "|" in place


def source(scheme: str, options: dict[str, Any]) -> Source:
    found = find(scheme)
    return found(
        found.options_class.model_validate({"scheme": scheme, **options}), URL.removesuffix("/in")
    )


def request(row: Row, now: float) -> Request:
    """Return a delivery as it arrives at `now`."""
    token = row.options.get("verification_token", "")
    sender = source(row.scheme, row.sender or row.options)
    event, body = sender.sample("", "123456789", now, token)
    signed = sender.sign(Draft(padded(body), URL, now, event, "123456789"))
    headers = {name.lower(): value for name, value in signed.headers.items()}
    query = urlencode(signed.query)
    return Request("POST", urlsplit(URL).path, query, headers, signed.body, "", 0.0, now)


def padded(body: bytes) -> bytes:
    """Make it as long as `SIZE`, in its own form."""
    end, more = _ENDS.get(body[:1], (b"", b"&more=%b"))
    start = body.removesuffix(end)
    return start + more % (b"x" * (SIZE - len(start) - len(more) + len("%b")))


def cpu(verifier: Source, received: Request) -> float:
    """Return the microseconds of CPU that one `verify` takes."""
    verify = verifier.verify
    start = time.process_time_ns()
    for _ in range(VERIFIES):
        verify(received)
    return (time.process_time_ns() - start) / VERIFIES / 1000


def measure() -> Iterator[tuple[Row, list[float]]]:
    """Yield each row with its runs, which take turns: all see the same machine."""
    now = time.time()
    ends = [(row, source(row.scheme, row.options), request(row, now)) for row in rows()]
    runs: list[list[float]] = [[] for _ in ends]
    for _ in range(RUNS):
        for (_, verifier, received), times in zip(ends, runs, strict=True):
            times.append(cpu(verifier, received))
    yield from zip((row for row, _, _ in ends), runs, strict=True)


def main() -> int:
    """Print the table; returns 1 where a scheme with an HMAC misses the target."""
    gc.disable()
    print(f"us CPU a verify, {SIZE} bytes, median of {RUNS} runs of {VERIFIES:,}")
    print(f"{'scheme':<15} {'median':>7} {'lowest':>7} {'highest':>7}")
    missed = 0
    for row, runs in measure():
        median = statistics.median(runs)
        over = row.hmac and median > TARGET
        missed += over
        note = f"  over {TARGET:g}" if over else ""
        print(f"{row.name:<15} {median:7.1f} {min(runs):7.1f} {max(runs):7.1f}{note}")
    print(f"target: at most {TARGET:g} us with an HMAC; {missed or 'none'} over it")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

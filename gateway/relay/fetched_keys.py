"""A sender's public keys: fetched in the background, kept for a while.

Requests name keys before anybody has proven them, so what they cause is bounded: one source's
fetches are few, one at a time, and what could not be fetched is not asked for again at once. A
client that asks for many gets only a small share of them. What is known stays known.
"""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio import Queue
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from gateway.allowance import Allowance
from gateway.background import Service, Work
from gateway.clock import monotonic
from gateway.errors import KeyNotKnown, Unverified
from gateway.http_client import HttpClient, Response
from gateway.sources.base import KeyRequest

log = logging.getLogger(__name__)

#: The most keys that are kept for a source, the failed ones among them, and that wait.
MAX_KEYS, MAX_WAITING = 64, 8
#: Seconds: for a fetch; until what is known is fetched again; until it is no longer believed, if
#: that fails; until something is asked for again, whether there was an answer or not.
TIMEOUT, FRESH, STALE, PAUSE = 5.0, 3_600.0, 86_400.0, 60.0
#: Seconds that an access token is used; they are good for an hour or longer.
TOKEN = 600.0
#: How many keys that nobody knows are asked for at once, and seconds until there may be one more.
BURST, REFILL = 10, 6.0
#: The same for one sender's address.
SHARE, SHARE_REFILL = 5, 12.0
FORM = "application/x-www-form-urlencoded"
#: Bytes of an answer; a large set of keys has about 10 KiB.
MAX_ANSWER = 128 * 1024


@dataclass(slots=True)
class KnownKey:
    """What is known about a key: its ``value``, and when that was fetched and last tried."""

    value: Any = None
    fetched: float = -STALE
    tried: float = -PAUSE
    #: Is it waiting to be fetched, or being fetched?
    asked: bool = False
    #: Does the sender say that there is no such key?
    absent: bool = False


class FetchedKeys(Service):
    """Knows the public keys of one source; `start` fetches those that every delivery needs."""

    def __init__(self, needed: Iterable[KeyRequest]):
        self._needed = list(needed)
        # A company's own keys may be at a private address; nothing in a request chooses the host.
        self._client = HttpClient(MAX_ANSWER, public=False)
        self._known: dict[str, KnownKey] = {}
        self._waiting: Queue[KeyRequest] = Queue(MAX_WAITING)
        self._all, self._shares = Allowance(BURST, REFILL), Allowance(SHARE, SHARE_REFILL)
        self._token, self._token_until = "", 0.0

    def _work(self) -> Work:
        yield "public keys", self._run()

    async def start(self) -> None:
        await super().start()
        for each in self._needed:
            self._ask(each)

    async def stop(self) -> None:
        await super().stop()
        self._client.close()

    def get(self, wanted: KeyRequest, newer: bool = False) -> Any:
        """Return what was fetched; see `gateway.sources.base.KeyStore`."""
        about, now = self._known.get(wanted.url) or KnownKey(), monotonic()
        age = now - about.fetched
        if age > FRESH or (newer and age > PAUSE):
            about = self._ask(wanted)
        if about.value is not None and age < STALE and not (newer and about.asked):
            return about.value
        if about.absent and not about.asked:
            raise Unverified("The sender has no such public key.")
        raise KeyNotKnown

    def _ask(self, wanted: KeyRequest) -> KnownKey:
        """Have a key fetched, unless that is under way or was just tried, or there is no room."""
        about = self._known.get(wanted.url)
        if about is not None and (about.asked or monotonic() - about.tried < PAUSE):
            return about
        # A new key costs a share of the few; what is known is few itself.
        if self._waiting.full() or (
            (about is None or about.value is None) and not self._spend(wanted.asker)
        ):
            return about or KnownKey()
        if about is None:
            self._make_room()
            about = self._known[wanted.url] = KnownKey()
        about.asked = True
        self._waiting.put_nowait(wanted)
        return about

    def _spend(self, address: str) -> bool:
        """Take a fetch from the share of an address, and from that of all, if both have one."""
        asker, now = _network(address), monotonic()
        if self._shares.wait(asker, now) or self._all.wait("", now):
            return False
        self._shares.take(asker)
        self._all.take("")
        return True

    def _make_room(self) -> None:
        """Forget the key that was tried first, one that has failed if there is any."""
        if len(self._known) < MAX_KEYS:
            return
        unasked = [item for item in self._known.items() if not item[1].asked]
        url, _ = min(unasked, key=lambda item: (item[1].value is not None, item[1].tried))
        del self._known[url]

    async def _run(self) -> None:
        while True:
            wanted = await self._waiting.get()
            about = self._known[wanted.url]
            about.absent = False
            try:
                async with asyncio.timeout(TIMEOUT):
                    headers = await self._headers(wanted)
                    found = await self._client.fetch("GET", wanted.url, headers, b"")
                about.absent = found.status in (400, 404, 410)
                about.value, about.fetched = wanted.read(_body(found)), monotonic()
            except Exception as exc:  # noqa: BLE001 - whatever the key server has sent: it is logged
                log.warning("the public key at %s cannot be fetched: %s", wanted.url, exc)
            about.asked, about.tried = False, monotonic()

    async def _headers(self, wanted: KeyRequest) -> dict[str, str]:
        """Return the headers of the request for a key, with an access token if it needs one."""
        if wanted.login and monotonic() >= self._token_until:
            url, form = wanted.login
            login = b64encode(wanted.secret.encode()).decode()
            kind = {"Authorization": f"Basic {login}", "Content-Type": FORM}
            answer = json.loads(_body(await self._client.fetch("POST", url, kind, form.encode())))
            if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
                raise ValueError("no access token in the answer")
            self._token, self._token_until = answer["access_token"], monotonic() + TOKEN
        return {name: text.replace("{token}", self._token) for name, text in wanted.headers.items()}


def _network(address: str) -> str:
    """Return an address, or of IPv6 the network of 64 bits, all of which one client may have."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    # A socket for both has an IPv4 address within one of IPv6.
    mapped = getattr(found, "ipv4_mapped", None) or found
    return str(mapped) if mapped.version == 4 else mapped.exploded[:19]


def _body(found: Response) -> bytes:
    if found.status != 200:
        raise ValueError(f"the answer has the status {found.status}")
    return found.body

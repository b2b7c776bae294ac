"""What all pages have: who may see them, their frame, and how errors are shown."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from pydantic import SecretStr
from tornado.web import HTTPError, create_signed_value, decode_signed_value

from gateway import __version__
from gateway.admin.api.guarded import Guarded
from gateway.admin.api.operations import APIError, Operation, newest
from gateway.admin.api.schema import One
from gateway.admin.pages import widgets
from gateway.admin.pages.asked import Asked, Recent
from gateway.archive.reading import reading
from gateway.clock import time
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.history.gateways import Gateways
from gateway.history.history import History
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter, status
from gateway.journal.groups import OPEN, Group
from gateway.journal.reading import Reader
from gateway.journal.store import JournalStore
from gateway.process.supervisor import Supervisor

_HERE = Path(__file__).parent
#: Each page of the navigation: its path, its title, and the key that leads to it after `g`.
PAGES = (
    ("", "Overview", "o"),
    ("deliveries", "Deliveries", "d"),
    ("failures", "Failures", "f"),
    ("routes", "Routes", "r"),
    ("sources", "Sources", "s"),
    ("workers", "Workers", "w"),
    ("servers", "Servers", "v"),
)
#: What history keeps: the values of `range`, as people read them.
RANGES = {"10m": "10 min", "6h": "6 h", "14d": "14 d"}
#: Seconds for which a browser that has sent `admin_token` need not send it again.
SESSION = 12 * 3600
_MOMENT = 0.3  # seconds that a page waits for what the navigation counts
_COOKIE = "gateway_session"
#: A header that no page of another origin can send without being asked for permission.
_OWN = "X-Gateway-Page"
_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'self'; script-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Groups(NamedTuple):
    """The groups of failures.

    ``problem`` says why they could not be read, and ``untold`` why nobody is told of them; "":
    neither.
    """

    found: Sequence[Group] = ()
    problem: str = ""
    untold: str = ""


class Shared:
    """What the pages share: the history, the gateways, and what was asked for lately."""

    def __init__(self, supervisor: Supervisor, history: History, gateways: Gateways):
        self.supervisor, self.history, self.gateways = supervisor, history, gateways
        self.asked = Asked(supervisor)
        #: By ranges and routes: when their rates were read (monotonic), and the rates.
        self.lines: dict[str, tuple[float, list[float]]] = {}
        #: The groups of failures.
        self.groups = Recent(lambda: _read(supervisor.config))

    @property
    def starts(self) -> list[tuple[float, str]]:
        """When gateways have started, as far as it is known (epoch), and which, as text."""
        own = self.gateways.own.name
        found = [(at, f"{own} {version}") for at, version in self.history.starts]
        others = (each for each in self.gateways.lines if each.name != own)
        return sorted([*found, *((each.started, f"{each.name} {each.version}") for each in others)])

    async def marks(self) -> dict[str, str]:
        """Return as markup what the navigation says of pages, by their titles.

        Only what needs somebody is counted; nobody waits long for it.
        """
        found = {}
        other = {each.gateway for each in self.gateways.differences if each.wrong}
        if other:
            found["Overview"] = _mark("differs", len(other), "gateways differ or are lost")
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT):
                groups = (await self.groups.get()).found
            if many := sum(each.state in OPEN for each in groups):
                found["Failures"] = _mark("failed", many, "open")
        return found


def _mark(state: str, number: int, words: str) -> str:
    return f'{widgets.trouble(state, number)}<span class="gone"> {words}</span>'


async def _read(config: Config) -> Groups:
    """Read the groups of failures, where there is a journal."""
    if not config.journal:
        return Groups()
    try:
        async with JournalStore.opened(config) as store:
            untold = await store.untold() if config.notify else ""
            return Groups(await store.groups(), "", untold)
    except GatewayError as exc:
        return Groups(problem=str(exc))


@cache
def _static(name: str) -> tuple[bytes, str]:
    """Return the content of a file of `static`, and its digest."""
    content = (_HERE / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


class View(Guarded):
    """One page: a subclass says what its template shows.

    ``path`` is its own in `PAGES`, ``template`` a file of `templates`. A page with ``ranged`` lets
    people choose one of `RANGES`, which `range` has.
    """

    path: ClassVar[str] = ""
    template: ClassVar[str] = ""
    ranged = False
    #: What the navigation says of pages; nothing where the user may not see them.
    marks: Mapping[str, str] = MappingProxyType({})

    def initialize(self, shared: Shared) -> None:  # type: ignore[override] # Tornado's way
        super().initialize(shared.supervisor)
        self.shared = shared

    async def content(self, *path: str) -> dict[str, Any]:
        """Return the variables of the template; raises `APIError`, or `GatewayError` for a 503."""
        raise HTTPError(405)  # what is not shown takes `allowed` only

    async def delivery(self, delivery_id: str, reader: Reader | None = None) -> Entry:
        """Return a delivery by its id; raises `APIError` where there is none."""
        if reader is None:
            wanted = self.parameters(One, {"id": delivery_id})
            async with reading(self.config) as opened:
                return await self.delivery(wanted.id, opened)
        if (entry := await reader.get(delivery_id)) is None:
            why = "; ".join(["There is no such delivery, or none any more", *reader.problems])
            raise APIError(404, "not-found", f"{why}.")
        return entry

    async def latest(self, wanted: Filter, most: int, seconds: float) -> tuple[list[Entry], str]:
        """Return the newest deliveries that are found in this time, and why they are not all read.

        The text is empty where they could be read.
        """
        if not (self.config.journal or self.config.archive):
            return [], ""
        try:
            found, _, reader = await newest(self.config, wanted, "", 1, most, seconds)
        except GatewayError as exc:
            return [], str(exc)
        return found, "; ".join(reader.problems)

    async def get(self, *path: str) -> None:
        await self.served(self._show(path))

    head = get

    async def act(self, *path: str) -> None:
        """Do what a POST asks for; raises as `content` does."""
        raise HTTPError(405)

    async def post(self, *path: str) -> None:
        await self.served(self.act(*path))

    async def _show(self, path: tuple[str, ...]) -> None:
        found, self.marks = await asyncio.gather(self.content(*path), self.shared.marks())
        if not self._finished:
            self.render(self.template, **found)

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "same-origin")

    def prepare(self) -> None:
        headers = self.request.headers
        if self.request.method in ("GET", "HEAD"):
            # A link in a chat leads here: its page cannot read the answer, nor show it in a frame.
            if headers.get("Sec-Fetch-Mode") == "navigate":
                headers.pop("Sec-Fetch-Site", None)
        else:
            self.refuse_foreign()
            if _OWN not in headers:
                raise APIError(403, "forbidden", f"the page sends {_OWN}")
        super().prepare()

    def authorized(self, token: SecretStr) -> bool:
        key, cookie = token.get_secret_value(), self.get_cookie(_COOKIE)
        signed = decode_signed_value(key, _COOKIE, cookie, SESSION / 86_400, min_version=2)
        return signed is not None or super().authorized(token)

    @property
    def live(self) -> bool:
        """Does a page that is open already ask for what has changed?"""
        return self.request.headers.get(_OWN) == "live"

    @property
    def root(self) -> str:
        """The way from this page to that of the paths in `PAGES`, also behind a proxy's prefix."""
        return "../" * (self.request.path.count("/") - 1) or "./"

    @property
    def range(self) -> str:
        """The chosen one of `RANGES`."""
        wanted = self.get_query_argument("range", "6h")
        return wanted if wanted in RANGES else "6h"

    def link(self, path: str | None = None, **changed: str) -> str:
        """Return the URL of a page; without a `path` this one, with some parameters changed.

        An empty parameter is left out.
        """
        names = self.request.query_arguments if path is None else {}
        own = {name: self.get_query_argument(name) for name in names} | changed
        query = urlencode({name: value for name, value in own.items() if value})
        at = self.request.path.rpartition("/")[2] if path is None else self.root + path
        return (at or "./") + (f"?{query}" if query else "")

    def get_template_path(self) -> str:
        return str(_HERE / "templates")

    def get_template_namespace(self) -> dict[str, Any]:
        title = {path: title for path, title, _ in PAGES}.get(self.path, "")
        return {
            **super().get_template_namespace(), **widgets.ALL, "config": self.config,
            "file": lambda name: f"{self.root}page/{name}?{_static(name)[1]}", "link": self.link,
            "marks": self.marks, "now": time(), "pages": PAGES, "ranges": RANGES,
            "root": self.root, "status": status, "title": title, "version": __version__,
            "view": self,
        }  # fmt: skip

    def answer_error(self, status: int, kind: str, detail: str) -> None:
        if self.request.method == "POST":
            self.finish({"type": kind, "detail": detail})
            return
        self.ranged = False  # its links have the query, which may be what is wrong
        template = "locked.html" if status == 401 else "error.html"
        self.render(template, problem=HTTPStatus(status).phrase, detail=detail)


class Act(View):
    """Does what an operation of the API does."""

    allowed = "POST"

    def initialize(self, shared: Shared, operation: Operation) -> None:  # type: ignore[override] # Tornado's way
        super().initialize(shared)
        self._operation = operation

    async def act(self, *path: str) -> None:
        self.finish((await self.run(self._operation, self.config, path)).model_dump())


class Session(View):
    """Gives a browser that has sent `admin_token` a cookie, which its scripts cannot read."""

    allowed = "POST"

    async def act(self, *path: str) -> None:
        token = self.config.admin_token
        if token is not None:
            cookie = create_signed_value(token.get_secret_value(), _COOKIE, "")
            self.set_cookie(_COOKIE, cookie, max_age=SESSION, httponly=True, samesite="Lax")
        self.set_status(204)


class File(View):
    """A file of the pages, which has nothing that only some may see."""

    _TYPES: ClassVar[dict[str, str]] = {".css": "text/css", ".js": "text/javascript"}

    def authorized(self, token: SecretStr) -> bool:
        return True

    async def get(self, *path: str) -> None:
        file = Path(path[0])
        if not (_HERE / "static" / file).is_file():
            raise APIError(404, "not-found", "there is no such file")
        content, digest = _static(path[0])
        self.set_header("Content-Type", f"{self._TYPES[file.suffix]}; charset=utf-8")
        # Pages name the digest, so that a browser asks for each version once only.
        versioned = self.request.query == digest
        self.set_header("Cache-Control", "max-age=31536000, immutable" if versioned else "no-cache")
        self.finish(content)

    head = get


class Unknown(View):
    """Answers what the pages do not have."""

    async def content(self, *path: str) -> dict[str, Any]:
        raise APIError(404, "not-found", "There is no such page.")

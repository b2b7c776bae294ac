"""Serve the API: who may ask, what was asked for, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from gateway.admin.api.openapi import document
from gateway.admin.api.operations import CHANGES, DOCUMENT, OPERATIONS, Operation, Refused
from gateway.admin.api.schema import Delivery, Parameters, Problem, Wanted
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.reading import Reader, changes, reading
from gateway.process.supervisor import Supervisor

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Parameters)

STREAMS = 16  # that may be open at once
EVERY = 0.5  # seconds between two looks at what has changed
MOST = 50  # deliveries that are told at each look; of further ones the number is
_QUIET = 15.0  # seconds after which a stream without events sends a comment


def routes(supervisor: Supervisor) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the API's handlers for Tornado."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    found: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (DOCUMENT, Document, {"supervisor": supervisor}),
        (CHANGES, Changes, {"supervisor": supervisor}),
    ]
    for path, operations in by_path.items():
        pattern = path.replace("{id}", "(?P<id>[^/]+)")
        found.append((pattern, Call, {"supervisor": supervisor, "operations": operations}))
    found.append(("/api/.*", Unknown, {"supervisor": supervisor}))
    return found


class Guarded(RequestHandler):
    """Refuses who may not ask, and answers errors as problem details."""

    def initialize(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    @property
    def config(self) -> Config:
        return self.supervisor.config

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def prepare(self) -> None:
        token = self.config.admin_token
        if token is not None:
            given = self.request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {token.get_secret_value()}".encode()):
                why = "send Authorization: Bearer and `admin_token`"
                raise Refused(401, "unauthorized", why, WWW_Authenticate="Bearer")
        elif not _is_plain(self.request.host_name):
            # Otherwise another web page could have its own name lead to this address.
            raise Refused(403, "forbidden", "without admin_token, ask by an address or localhost")
        origin = self.request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.request.host:
            raise Refused(403, "forbidden", "another web page may not ask")

    def needs_journal(self) -> None:
        if not self.config.journal:
            raise Refused(404, "no-journal", "nothing is kept: set `journal`")

    def parameters(self, model: type[P], path: dict[str, str]) -> P:
        """Return the request's parameters; raises `Refused` where one is wrong."""
        given: dict[str, str] = dict(path)
        for name in self.request.query_arguments:
            if name in path or len(self.get_query_arguments(name)) > 1:
                raise Refused(400, "bad-request", f"{name}: give it once")
            given[name] = self.get_query_argument(name)
        try:
            return model.model_validate(given)
        except ValidationError as exc:
            problems = (f"{each['loc'][0]}: {_text(each['msg'])}" for each in exc.errors())
            raise Refused(400, "bad-request", "; ".join(problems)) from None

    async def served(self, answer: Awaitable[None]) -> None:
        """Await the answer; a server that does not answer is a 503."""
        try:
            await answer
        except GatewayError as exc:
            raise Refused(503, "unavailable", str(exc)) from exc

    def log_exception(self, *exc_info: Any) -> None:
        if not isinstance(exc_info[1], (Refused, HTTPError)):
            log.error("a request of the API has failed", exc_info=exc_info)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        status, kind, detail = status_code, "internal", "see the gateway's log"
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, Refused):
            status, kind, detail = error.status, error.type, str(error)
            for name, value in error.headers.items():
                self.set_header(name, value)
        elif isinstance(error, HTTPError):
            kind, detail = "bad-request", error.log_message or error.reason or "malformed"
        self.set_status(status)
        self.set_header("Content-Type", "application/problem+json")
        problem = Problem(
            type=f"urn:celery-gateway:{kind}",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
        )
        self.finish(problem.model_dump_json())


class Call(Guarded):
    """Runs one operation and answers with its model as JSON."""

    def initialize(  # type: ignore[override] # Tornado's way
        self, supervisor: Supervisor, operations: dict[str, Operation]
    ) -> None:
        super().initialize(supervisor)
        self._operations = operations

    async def get(self, **path: str) -> None:
        await self.served(self._run("GET", path))

    async def post(self, **path: str) -> None:
        await self.served(self._run("POST", path))

    async def _run(self, method: str, path: dict[str, str]) -> None:
        operation = self._operations.get(method)
        if operation is None:
            allowed = ", ".join(self._operations)
            raise Refused(405, "method-not-allowed", f"allowed: {allowed}", Allow=allowed)
        self.needs_journal()
        wanted = self.parameters(operation.parameters, path)
        answer = await operation.run(self.config, wanted)
        self.set_header("Content-Type", "application/json")
        self.finish(answer.model_dump_json(by_alias=True))


class Document(Guarded):
    """The OpenAPI document."""

    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(_document())


class Unknown(Guarded):
    """Answers what the API does not have."""

    def prepare(self) -> None:
        super().prepare()
        raise Refused(404, "not-found", f"see {DOCUMENT}")


class Changes(Guarded):
    """Server-sent events: each delivery when it is received or changes."""

    _open: ClassVar[set[Changes]] = set()

    async def get(self) -> None:
        self.needs_journal()
        wanted = self.parameters(Wanted, {}).filter()
        if len(self._open) >= STREAMS:
            raise Refused(503, "unavailable", f"{STREAMS} streams are open already")
        self._open.add(self)
        try:
            await self.served(self._stream(wanted))
        except StreamClosedError:
            log.debug("a stream's client has left")
        finally:
            self._open.discard(self)

    def on_connection_close(self) -> None:
        self._gone.set()

    def prepare(self) -> None:
        self._gone = asyncio.Event()
        super().prepare()

    async def _stream(self, wanted: Any) -> None:
        async with reading(self.config) as reader, _collecting(self.config) as changed:
            self.set_header("Content-Type", "text/event-stream")
            await self._send(": from now on nothing is missed\n\n")
            quiet = 0.0
            while not self._gone.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), EVERY)
                changed.check()
                text = await self._events(reader, wanted, changed.take())
                quiet = 0.0 if text else quiet + EVERY
                if text or quiet >= _QUIET:
                    quiet = 0.0
                    await self._send(text or ": \n\n")

    async def _send(self, text: str) -> None:
        self.write(text)
        await self.flush()

    async def _events(self, reader: Reader, wanted: Any, ids: list[str]) -> str:
        texts = []
        for delivery_id in ids[:MOST]:
            entry = await reader.get(delivery_id)
            if entry is not None and wanted.takes(entry):
                data = Delivery.of(entry).model_dump_json()
                texts.append(f"event: delivery\nid: {delivery_id}\ndata: {data}\n\n")
        if missed := len(ids[MOST:]):
            texts.append(f"event: missed\ndata: {missed}\n\n")
        return "".join(texts)


class _Changed:
    """The ids of deliveries that have changed since they were last taken."""

    def __init__(self, config: Config):
        self._config = config
        self._ids: dict[str, None] = {}
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._collect())

    async def ready(self) -> None:
        """Wait until nothing is missed; raises `GatewayError` where Redis does not answer."""
        waiting = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self.check()

    def check(self) -> None:
        """Raise the error with which listening has ended."""
        if self._task.done():
            self._task.result()

    def take(self) -> list[str]:
        ids, self._ids = list(self._ids), {}
        return ids

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _collect(self) -> None:
        async with aclosing(changes(self._config)) as ids:
            async for delivery_id in ids:
                if delivery_id:
                    self._ids[delivery_id] = None
                else:
                    self._ready.set()


@asynccontextmanager
async def _collecting(config: Config) -> AsyncIterator[_Changed]:
    changed = _Changed(config)
    try:
        await changed.ready()
        yield changed
    finally:
        await changed.stop()


@cache
def _document() -> str:
    return json.dumps(document())


def _is_plain(host: str) -> bool:
    """Tell whether a host is an address, or localhost: no name that somebody else may own."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return True


def _text(message: str) -> str:
    return message.removeprefix("Value error, ")

"""Serve the API: its operations, its stream of changes, and the document that describes it."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

from tornado.web import HTTPError, RequestHandler

from gateway.admin.api.changes import Changes
from gateway.admin.api.guarded import Guarded
from gateway.admin.api.openapi import document
from gateway.admin.api.operations import CHANGES, DOCUMENT, OPERATIONS, Operation, Refused
from gateway.audit import LOOK
from gateway.process.supervisor import Supervisor


def routes(
    supervisor: Supervisor, *known: object
) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the API's handlers for Tornado; `known` is what operations ask beside the journal."""
    subjects = {type(each): each for each in known}
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    found: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (DOCUMENT, Document, {"supervisor": supervisor}),
        (CHANGES, Changes, {"supervisor": supervisor, "streams": set()}),
    ]
    for path, operations in by_path.items():
        pattern = path.replace("{id}", "(?P<id>[^/]+)")
        given = {"supervisor": supervisor, "operations": operations, "subjects": subjects}
        found.append((pattern, Call, given))
    found.append(("/api/.*", Unknown, {"supervisor": supervisor}))
    return found


class Call(Guarded):
    """Runs one operation and answers with its model as JSON."""

    def initialize(  # type: ignore[override] # Tornado's way
        self, supervisor: Supervisor, operations: dict[str, Operation], subjects: dict[type, object]
    ) -> None:
        super().initialize(supervisor)
        self._operations = operations
        self._subjects = subjects
        self.allowed = ", ".join(operations)

    async def get(self, **path: str) -> None:
        await self.served(self._run("GET", path))

    async def post(self, **path: str) -> None:
        await self.served(self._run("POST", path))

    async def _run(self, method: str, path: dict[str, str]) -> None:
        operation = self._operations.get(method)
        if operation is None:
            raise HTTPError(405)
        subject = self._subjects.get(operation.subject, self.config)
        if subject is self.config:
            self.needs_journal()
        wanted = self.parameters(operation.parameters, path)
        if operation.audited == LOOK:
            self.needs("bodies")
        if operation.audited:
            given = {k: v for k, v in wanted.model_dump().items() if v not in ("", None, False)}
            self.audit(operation.audited, **given)
        try:
            answer = await operation.run(subject, wanted)
        except asyncio.CancelledError:
            why = "the gateway ends; of a replay, the deliveries say what was published"
            raise Refused(503, "unavailable", why) from None
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


@cache
def _document() -> str:
    return json.dumps(document())

"""Serve the API: its operations, and the document that describes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from tornado.web import HTTPError, RequestHandler

from gateway import __version__
from gateway.admin.api.guarded import Guarded
from gateway.admin.api.operations import DOCUMENT, OPERATIONS, APIError, Operation
from gateway.admin.api.schema import Problem
from gateway.process.supervisor import Supervisor

_REF = "#/components/schemas/{model}"
#: By status: when it is answered.
_PROBLEMS = {
    400: "A parameter is wrong",
    401: "The token is missing or wrong",
    403: "Another web page asks, or the user does not have the role",
    404: "There is no such delivery, group or route, no journal, or no [notify]",
    405: "The method is another one",
    409: "The delivery was not replayed",
    500: "Something went wrong, which the gateway's log has",
    503: "The journal's Redis or the broker does not answer, or the broker took no replay",
}


def routes(
    supervisor: Supervisor, *objects: object
) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Return the handlers for Tornado; `objects` are what operations ask beside the journal."""
    subjects = {type(each): each for each in objects}
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.pattern, {})[operation.method] = operation
    found: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (DOCUMENT, Document, {"supervisor": supervisor}),
    ]
    for pattern, operations in by_path.items():
        arguments = {"supervisor": supervisor, "operations": operations, "subjects": subjects}
        found.append((pattern, Call, arguments))
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

    async def get(self, *path: str) -> None:
        await self.served(self._run("GET", path))

    async def post(self, *path: str) -> None:
        await self.served(self._run("POST", path))

    async def _run(self, method: str, path: Sequence[str]) -> None:
        operation = self._operations.get(method)
        if operation is None:
            raise HTTPError(405)
        subject = self._subjects.get(operation.subject, self.config)
        try:
            answer = await self.run(operation, subject, path)
        except asyncio.CancelledError:
            why = "the gateway ends; of a replay, the deliveries say what was published"
            raise APIError(503, "unavailable", why) from None
        self.set_header("Content-Type", "application/json")
        self.finish(answer.model_dump_json(by_alias=True))


class Document(Guarded):
    """The OpenAPI document."""

    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(document()))


class Unknown(Guarded):
    """Answers what the API does not have."""

    def prepare(self) -> None:
        super().prepare()
        raise APIError(404, "not-found", f"see {DOCUMENT}")


@cache
def document() -> dict[str, Any]:
    """Return the document, for OpenAPI 3.1."""
    models: list[type[BaseModel]] = [Problem, *(each.answer for each in OPERATIONS)]
    _, schemas = models_json_schema(
        [(model, "serialization") for model in dict.fromkeys(models)], ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "celery-gateway",
            "version": __version__,
            "description": "A gateway's journal, replays, failures, history, and other gateways.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the admin port"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "the setting `admin_token`, where there is one",
                }
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    answer, problem = _reference(operation.answer), _reference(Problem)
    refused = {"application/problem+json": {"schema": problem}}
    done = {
        "description": (operation.answer.__doc__ or "").strip().partition("\n")[0],
        "content": {"application/json": {"schema": answer}},
    }
    problems = {str(k): {"description": v, "content": refused} for k, v in _PROBLEMS.items()}
    return {
        "operationId": operation.run.__name__,
        "summary": operation.summary,
        "parameters": _parameters(operation.parameters, operation.path),
        "responses": {"200": done, **problems},
    }


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _parameters(model: type[BaseModel], path: str) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    found = []
    for name, own in schema["properties"].items():
        text, within = own.pop("description", ""), f"{{{name}}}" in path
        own.pop("title", None)
        found.append({
            "name": name, "in": "path" if within else "query", "description": text, "schema": own,
            "required": within or name in schema.get("required", ()),
        })  # fmt: skip
    return found

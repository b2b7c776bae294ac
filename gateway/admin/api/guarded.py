"""Which clients may ask the API, what they ask for, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError
from tornado.web import HTTPError, RequestHandler

from gateway import audit
from gateway.admin.api.operations import APIError, Operation
from gateway.admin.api.schema import Parameters, Problem
from gateway.audit import LOOK
from gateway.config.pointers import glob
from gateway.config.problems import explain
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.http.head import Proxies, is_plain
from gateway.process.supervisor import Supervisor

log = logging.getLogger(__name__)

#: What users may do: each role may do what those before it may.
ROLES = ("view", "bodies", "act")

P = TypeVar("P", bound=Parameters)


class Guarded(RequestHandler):
    """Refuses clients that may not ask, and answers errors as problem details."""

    allowed = "GET"
    #: The user whom a proxy has authenticated; "": a client with the token, or without need of one.
    user = ""

    def initialize(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    @property
    def config(self) -> Config:
        return self.supervisor.config

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def prepare(self) -> None:
        config = self.config
        self.user = self._named()
        if self.user:
            self.needs("view" if self.request.method in ("GET", "HEAD") else "act")
            if not is_plain(self.request.host_name):
                why = "the proxy has to send the gateway's address as Host, and not a name"
                raise APIError(403, "forbidden", why)
            self.refuse_foreign()
            return
        token = config.admin_token
        if token is None and config.admin_user_header:
            why = f"a trusted proxy has to send {config.admin_user_header}"
            raise APIError(401, "unauthorized", why)
        if token is not None:
            if not self.authorized(token):
                why = "send Authorization: Bearer and `admin_token`"
                raise APIError(401, "unauthorized", why, WWW_Authenticate="Bearer")
            return
        if not is_plain(self.request.host_name):
            # Otherwise another web page could have its own name lead to this address.
            raise APIError(403, "forbidden", "without admin_token, ask by an address or localhost")
        self.refuse_foreign()

    def refuse_foreign(self) -> None:
        """Refuse what another web page asks, with what the browser has of this origin."""
        headers = self.request.headers
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        # A proxy may send another Host than that of the page; then the browser has told.
        other = origin is not None and urlsplit(origin).netloc != self.request.host
        if site in ("cross-site", "same-site") or (other and site != "same-origin"):
            raise APIError(403, "forbidden", "another web page may not ask")

    def _named(self) -> str:
        """Return whom a trusted proxy has authenticated; "": nobody."""
        header = self.config.admin_user_header
        if not header or not Proxies(self.config.trusted_proxies).trusted(
            self.request.remote_ip or ""
        ):
            return ""
        names = self.request.headers.get_list(header)
        if len(names) > 1:
            # One is the client's own, and a pattern may fit it, or both together.
            raise APIError(403, "forbidden", f"the proxy has to remove {header} from what it gets")
        return names[0] if names else ""

    def may(self, role: str) -> bool:
        """May the user do what a role may? Who has the token may do all."""
        own = ROLES[ROLES.index(role) :]
        roles = self.config.admin_roles.items()
        names = [each for name, users in roles if name in own for each in users]
        return not self.user or any(glob(each)(self.user) for each in names)

    def needs(self, role: str) -> None:
        if not self.may(role):
            raise APIError(403, "forbidden", f"{self.user} does not have the role {role}")

    def authorized(self, token: SecretStr) -> bool:
        """Does the request show that its sender has the `token`?"""
        sent = self.request.headers.get("Authorization", "").encode("latin-1")
        return hmac.compare_digest(sent, f"Bearer {token.get_secret_value()}".encode())

    def needs_journal(self) -> None:
        if not self.config.journal:
            raise APIError(404, "no-journal", "nothing is kept: set `journal`")

    def parameters(self, model: type[P], path: dict[str, str]) -> P:
        """Return the request's parameters; raises `APIError` where one is wrong."""
        values: dict[str, str] = dict(path)
        if "text" in self.request.query_arguments:  # by which a body could be guessed
            self.needs("bodies")
        for name in self.request.query_arguments:
            if name in path or len(self.get_query_arguments(name)) > 1:
                raise APIError(400, "bad-request", f"{name}: give it once")
            values[name] = self.get_query_argument(name)
        try:
            return model.model_validate(values)
        except ValidationError as exc:
            problems = explain(exc, model, field="parameter")
            raise APIError(400, "bad-request", "; ".join(problems)) from None

    def audit(self, what: str, **about: object) -> None:
        """Note in the log who does this, and to what; empty values are left out."""
        # The token is one for all who may ask.
        who = self.user or ("token" if self.config.admin_token is not None else "no token")
        audit.note(what, f"{self.request.remote_ip} ({who})", **about)

    async def run(self, operation: Operation, subject: Any, path: Sequence[str]) -> BaseModel:
        """Do what an operation does, and note in the log who asks; `path` has its `id`, if any."""
        if subject is self.config:
            self.needs_journal()
        wanted = self.parameters(operation.parameters, dict(zip(("id",), path, strict=False)))
        if operation.audited == LOOK:
            self.needs("bodies")
        if operation.audited:
            values = {k: v for k, v in wanted.model_dump().items() if v not in ("", None, False)}
            self.audit(operation.audited, **values)
        return await operation.run(subject, wanted)

    async def served(self, answer: Awaitable[None]) -> None:
        """Await the answer; a server that does not answer is a 503."""
        try:
            await answer
        except GatewayError as exc:
            raise APIError(503, "unavailable", str(exc)) from exc

    def log_exception(self, *exc_info: Any) -> None:
        if not isinstance(exc_info[1], (APIError, HTTPError)):
            log.error("a request of the API has failed", exc_info=exc_info)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        status, kind, detail = status_code, "internal", "see the gateway's log"
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, APIError):
            status, kind, detail = error.status, error.type, str(error)
            for name, value in error.headers.items():
                self.set_header(name, value)
        elif status_code == 405:
            kind, detail = "method-not-allowed", f"allowed: {self.allowed}"
            self.set_header("Allow", self.allowed)
        elif isinstance(error, HTTPError):
            kind, detail = "bad-request", error.log_message or error.reason or "malformed"
        self.set_status(status)
        self.answer_error(status, kind, detail)

    def answer_error(self, status: int, kind: str, detail: str) -> None:
        """Answer with an error."""
        self.set_header("Content-Type", "application/problem+json")
        problem = Problem(
            type=f"urn:celery-gateway:{kind}",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
        )
        self.finish(problem.model_dump_json())

"""Find the endpoint of a path, verify its sender, and find the route of an event."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import unquote_to_bytes

from gateway.answer import Answer
from gateway.clock import time
from gateway.config.redaction import Redaction
from gateway.config.route import PARAM, Route, taking
from gateway.config.settings import Config
from gateway.delivery import PRIVATE_HEADERS, Delivery, Request
from gateway.errors import BadRequest, MethodNotAllowed, NotFound, Unverified
from gateway.relay.fetched_keys import FetchedKeys
from gateway.relay.limits import SourceLimits
from gateway.sources.base import Source, Verified
from gateway.sources.proofs import raw

#: The most characters of an event's name; the longest that senders use have about 60. What is
#: longer is cut.
MAX_EVENT = 255


class Endpoint:
    """A path with its source and the routes of its events."""

    def __init__(
        self, path: str, name: str, source: Source | None, limits: SourceLimits, routes: list[Route]
    ):
        self.path = path
        self.name = name
        self.source = source
        self.scheme = source.options.scheme if source else ""
        self.limits = limits
        #: Does the journal keep deliveries of any of its routes?
        self.journal = any(route.journal for route in routes)
        values = {place for route in routes for place in route.redact}
        #: What hides the values that no route of the path keeps; None: there are none.
        self.redaction = Redaction(values) if values else None
        self._routes = routes
        self._methods = {method for route in routes for method in route.methods}
        self._posts = "POST" in self._methods
        self._allowed = sorted(self._methods.union(source.handshakes if source else ()))
        #: The route that takes everything, where there is no other.
        self._only = None
        if len(routes) == 1 and not (routes[0].events or routes[0].when):
            self._only = routes[0]
        kept = source.options.pass_headers if source else []
        self._kept = frozenset(name.lower() for name in kept)

    def verify(self, request: Request) -> Verified:
        """Verify `request`, or answer the sender's handshake. Raises `RequestError`."""
        source = self.source
        if request.method == "POST" and self._posts:
            return source.verify(request) if source else Verified(request.body)
        self.check(request.method)
        if source is not None and request.method in source.handshakes:
            try:
                return Verified(b"", challenge=source.handshake(request))
            except Unverified:
                if request.method not in self._methods:
                    raise
        if request.method == "GET":
            # What a POST has in its body.
            request = replace(request, body=raw(request.query_string))
        return source.verify(request) if source else Verified(request.body)

    def check(self, method: str) -> None:
        """Raise `MethodNotAllowed` unless there are deliveries or handshakes with the method."""
        if method not in (allowed := self._allowed):
            text = f"Send a {' or a '.join(allowed)}, not a {method[:20]}."
            raise MethodNotAllowed(text, headers={"Allow": ", ".join(allowed)})

    def route(self, delivery: Delivery, event: str) -> Route | None:
        """Return the first route that takes `delivery`; None: there is none.

        `event` is its event, uncut. Raises `BadRequest` where there is none, and what a `when` asks
        for cannot be read, and as `taking` does.
        """
        if self._only is not None:
            return self._only
        found = taking(self._routes, event)
        route = next((each for each in found if each.takes(delivery)), None)
        if route is None and isinstance(delivery.document, str):
            raise BadRequest(delivery.document)
        return route

    def routed(self, event: str) -> bool:
        """Tell whether a route takes deliveries of `event`, if `when` allows it."""
        return any(True for _ in taking(self._routes, event))

    def unrouted(self, verified: Verified) -> Answer:
        """Return the answer for an event that no route takes."""
        source = self.source
        if source is None or source.options.unrouted is not None or source.fallback is None:
            status = source.options.unrouted if source else None
            return Answer(status or 204, "", b"")
        taken = Answer(200, source.content_type, source.fallback.encode())
        return source.reply(taken, verified, time())

    def headers(self, request: Request) -> dict[str, str]:
        """Return the headers that the task gets, without secret ones."""
        if self.source is None:
            return request.headers
        secret = self.source.secret_headers
        return {
            name: value
            for name, value in request.headers.items()
            if name in self._kept
            or not (name in PRIVATE_HEADERS or name in secret or name.startswith("proxy-"))
        }


class Routes:
    """Finds endpoints by path; those with parameters are tried in the order of the file."""

    def __init__(self, config: Config):
        sources = {name: config.source(name) for name in config.sources}
        #: The public keys of each source that fetches them.
        self.fetched_keys = []
        for each in sources.values():
            if each.fetches:
                each.key_store = keys = FetchedKeys(each.key_requests)
                self.fetched_keys.append(keys)
        limits = {name: SourceLimits(source.options) for name, source in sources.items()}
        routes: dict[str, list[Route]] = {}
        for route in config.routes:
            routes.setdefault(route.path, []).append(route)
        self._plain: dict[str, Endpoint] = {}
        self._patterns: list[tuple[re.Pattern[str], Endpoint]] = []
        for path, of_path in routes.items():
            name = of_path[0].source or ""
            source = sources.get(name)
            spent = limits.get(name) or SourceLimits(None)
            endpoint = Endpoint(path, name, source, spent, of_path)
            if "{" in path:
                self._patterns.append((_pattern(path), endpoint))
            else:
                self._plain[path] = endpoint

    def find(self, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint and the parameters in the path.

        Raises `NotFound` or, where the path is not printable UTF-8, `BadRequest`.
        """
        if "%" in path:
            path = _decode(path)
        endpoint = self._plain.get(path)
        if endpoint is not None:
            return endpoint, {}
        for pattern, endpoint in self._patterns:
            if match := pattern.fullmatch(path):
                return endpoint, match.groupdict()
        raise NotFound


def _pattern(path: str) -> re.Pattern[str]:
    """Return the expression for a path with parameters.

    A parameter ends where that which follows it in its segment comes first. If it could end at
    other places, too, all combinations of places would be tried where the path does not fit.
    """
    text = ""
    for segment in path.split("/"):
        before, *pieces = PARAM.split(segment)
        text += "/" + re.escape(before)
        pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
        for name, after in pairs[:-1]:
            text += f"(?>(?P<{name}>[^/]+?){re.escape(after)})"
        for name, after in pairs[-1:]:
            text += f"(?P<{name}>[^/]+){re.escape(after)}"
    return re.compile(text.removeprefix("/"))


def _decode(path: str) -> str:
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise BadRequest("The path is not UTF-8.") from exc
    if not text.isprintable():
        raise BadRequest("The path has control characters.")
    return text

"""From a path to the route that takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from gateway.config import Route
from gateway.errors import BadRequest, MethodNotAllowed, NotFound

_PARAM = re.compile(r"\{(\w+)\}")


class Routes:
    """Routes without parameters are looked up, the others tried in the order of the file."""

    def __init__(self, routes: Sequence[Route]):
        self._plain = {route.path: route for route in routes if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in routes if "{" in route.path]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the parameters in the path.

        Raises `NotFound`, `MethodNotAllowed` or, where the path is no text, `BadRequest`.
        """
        if "%" in path:
            path = _decode(path)
        params: dict[str, str] = {}
        route = self._plain.get(path)
        if route is None:
            route, params = self._match(path)
        if method != "POST":
            raise MethodNotAllowed(f"Send a POST, not a {method[:20]}.", headers={"Allow": "POST"})
        return route, params

    def _match(self, path: str) -> tuple[Route, dict[str, str]]:
        for pattern, route in self._patterns:
            if match := pattern.fullmatch(path):
                return route, match.groupdict()
        raise NotFound


def _pattern(path: str) -> re.Pattern[str]:
    pieces = _PARAM.split(path)
    return re.compile(
        "".join(f"(?P<{p}>[^/]+)" if i % 2 else re.escape(p) for i, p in enumerate(pieces))
    )


def _decode(path: str) -> str:
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise BadRequest("The path is not UTF-8.") from exc
    if not text.isprintable():
        raise BadRequest("The path has control characters.")
    return text

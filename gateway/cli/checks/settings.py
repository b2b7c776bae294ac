"""Check the configuration: the file, misspelt variables, weak signatures, sizes, unknown events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.cli.checks.finding import Finding, fail, listed, ok, warn
from gateway.config.loading import unknown_variables
from gateway.config.pointers import overlap
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.similar import similar
from gateway.sources import described, of

_DOCUMENT = "docs/configuration.md says what each setting may be"
_EXPOSED = "the body is not signed: anybody who sees a request can send another body with it"
_EXPOSED_REMEDY = (
    "use TLS on the whole way, or what docs/sources.md has for the scheme: an aes_key, {body} in "
    "signed, a signing token"
)
_SHARED = "the sender signs for all its users with this key, and anybody may be one of them"
_SHARED_REMEDY = (
    "add to secrets of [sources.{}] whose deliveries these are; docs/sources.md says how"
)

_HMAC = ", or set event in the source"
_kind = re.compile(r"[^./*]+[./]").match


def problems(found: list[str]) -> list[Finding]:
    """Return a finding for each problem that makes the configuration unusable."""
    return [fail("config", problem, _DOCUMENT) for problem in found]


def variables(environ: Mapping[str, str], path: Path | None) -> Iterator[Finding]:
    """Yield findings about variables that look like settings and are not."""
    for name, near in unknown_variables(environ, path).items():
        if near:
            problem = f"{name} is not read: there is no such variable"
            yield fail("config", problem, f"did you mean {near}?")
        else:
            remedy = "unset it, or choose a name that does not begin with GATEWAY_"
            yield warn("config", f"{name} is not read: no setting has this name", remedy)


def sources(config: Config) -> Iterator[Finding]:
    """Yield what the signatures of the sources leave unprotected: the body, or the time.

    All sources whose signature does not cover the body are one finding, because most of their
    schemes cannot do better.
    """
    exposed = []
    for name, options in config.sources.items():
        source = config.source(name)
        if source.shared_key:
            yield warn(f"source {name}", _SHARED, _SHARED_REMEDY.format(name))
        if not source.covers_body:
            exposed.append(f"{name} ({options.scheme})")
        elif options.tolerance:
            yield ok(f"source {name}")
        if options.tolerance == 0:
            problem = "a recorded request can be sent again until the secret is changed"
            remedy = f"set tolerance = 300 in [sources.{name}]"
            yield warn(f"source {name}", f"tolerance 0: {problem}", remedy)
    if exposed:
        yield warn(f"source {', '.join(exposed)}", _EXPOSED, _EXPOSED_REMEDY)


def bodies(config: Config) -> Iterator[Finding]:
    """Yield a warning for each source whose sender's largest body is above `max_body`."""
    for name, options in config.sources.items():
        largest = of(options).max_body
        if largest and largest > config.max_body:
            problem = f"its sender's largest body, {largest} bytes, is above max_body: a 413"
            yield warn(f"source {name}", problem, f"set max_body = {largest}, and nginx' own limit")


def drains(config: Config) -> Iterator[Finding]:
    """Yield a warning for each route whose requests may wait longer than a draining process."""
    for route in config.routes:
        waits = route.answer != "accept" or route.prefer
        if waits and route.deadline > config.grace:
            problem = (
                f"its deadline, {route.deadline:g} s, is above grace, {config.grace:g} s: a reload "
                "or a restart cuts off requests that wait"
            )
            remedy = f"set grace = {route.deadline:g}, and let what stops the gateway wait longer"
            yield warn(f"route {route.path}", problem, remedy)


def events(config: Config) -> Iterator[Finding]:
    """Yield a warning for each route that waits for events that its sender does not have.

    Such a route takes nothing, and no request fails: what no route takes is ignored.
    """
    for route in config.routes:
        if route.source is None:
            continue
        source = config.source(route.source)
        if (names := source.events) is None:
            continue
        # A delivery whose event cannot be read has none.
        unknown = [
            each for each in _events(route) if not any(overlap(each, e) for e in ("", *names))
        ]
        if unknown:
            yield _unknown_events(route, source.options.scheme, unknown, names)


def _events(route: Route) -> Iterator[str]:
    """Yield the names and patterns of events that a route takes."""
    yield from route.events or ()
    yield from (str(each) for each in route.when.get("event", ()))


def _unknown_events(
    route: Route, scheme: str, unknown: list[str], names: tuple[str, ...]
) -> Finding:
    check = f"route {route.path}"
    if not names:
        problem = f"deliveries of {route.source} ({scheme}) have no event: it takes none"
        return warn(check, problem, f"leave out events{_HMAC if scheme == 'hmac' else ''}")
    problem = f"{scheme} has no events {listed(unknown)} that the gateway knows of"
    near = [each for text in unknown if (each := similar(text, _forms(names)))]
    hint = f"did you mean {listed(near)}? " if near else ""
    remedy = f"{hint}{described(scheme)} says what an event is; others are ignored"
    return warn(check, problem, remedy)


def _forms(names: tuple[str, ...]) -> list[str]:
    """Return the names of events, and the pattern of each kind of events, as in `orders/*`."""
    return [*names, *{f"{kind[0]}*" for each in names if (kind := _kind(each))}]

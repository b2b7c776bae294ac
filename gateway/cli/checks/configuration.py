"""Check the configuration: the file, misspelt variables, and weak signatures of sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.cli.checks.finding import Finding, fail, ok, warn
from gateway.config.loading import unknown_variables
from gateway.config.settings import Config
from gateway.sources import find

_DOCUMENT = "docs/configuration.md says what each setting may be"
_EXPOSED = "the body is not signed: anybody who sees a request can send another body with it"
_EXPOSED_REMEDY = (
    "use TLS on the whole way, or what docs/sources.md has for the scheme: an aes_key, {body} in "
    "signed, a signing token"
)


def problems(found: list[str]) -> list[Finding]:
    """Return a finding for each problem that makes the configuration unusable."""
    return [fail("config", problem, _DOCUMENT) for problem in found]


def variables(environ: Mapping[str, str], path: Path | None) -> list[Finding]:
    """Return findings about variables that look like settings and are not."""
    return [
        fail("config", f"{name} is not read: there is no such variable", f"did you mean {near}?")
        if near
        else warn(
            "config",
            f"{name} is not read: no setting has this name",
            "unset it, or choose a name that does not begin with GATEWAY_",
        )
        for name, near in unknown_variables(environ, path).items()
    ]


def sources(config: Config) -> list[Finding]:
    """Return what the signatures of the sources leave unprotected: the body, or the time.

    All sources whose signature does not cover the body are one finding, because most of their
    schemes cannot do better.
    """
    found, exposed = [], []
    for name, options in config.sources.items():
        if not find(options.scheme)(options, config.public_url or "").covers_body:
            exposed.append(f"{name} ({options.scheme})")
        elif options.tolerance:
            found.append(ok(f"source {name}"))
        if options.tolerance == 0:
            problem = (
                "tolerance 0: a recorded request can be sent again until the secret is changed"
            )
            found.append(
                warn(f"source {name}", problem, f"set tolerance = 300 in [sources.{name}]")
            )
    if exposed:
        name = f"source {', '.join(exposed)}"
        found.append(warn(name, _EXPOSED, _EXPOSED_REMEDY))
    return found

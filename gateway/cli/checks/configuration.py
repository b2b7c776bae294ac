"""The configuration: the file, misspelt variables, and what sources leave open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.cli.checks.finding import Finding, fail, ok, warn
from gateway.config.loading import unknown_variables
from gateway.config.settings import Config
from gateway.sources import find

_DOCUMENT = "docs/configuration.md says what each setting may be"


def problems(found: list[str]) -> list[Finding]:
    """Return what keeps the configuration from being used."""
    return [fail("config", problem, f"correct it; {_DOCUMENT}") for problem in found]


def variables(environ: Mapping[str, str], path: Path | None) -> list[Finding]:
    """Return the variables that look like settings, and are none."""
    return [
        fail("config", f"{name} is not read: there is no such variable", f"did you mean {near}?")
        if near
        else warn(
            "config",
            f"{name} is not read: no setting is called so",
            "unset it, or choose a name that does not begin with GATEWAY_",
        )
        for name, near in unknown_variables(environ, path).items()
    ]


def sources(config: Config) -> list[Finding]:
    """Return what each source's signature leaves open, where it is less than usual."""
    return [finding for name in config.sources for finding in _source(config, name)]


def _source(config: Config, name: str) -> list[Finding]:
    options, place = config.sources[name], f"source {name}"
    source = find(options.scheme)(options, config.public_url or "")
    uncovered = "the body is not signed: who sees a request can send another with its proof"
    found = [ok(place, "" if source.covers_body else uncovered)]
    if options.tolerance == 0:
        problem = "tolerance 0: a recorded request stays good until the secret is changed"
        found.append(warn(place, problem, f"set tolerance = 300 in [sources.{name}]"))
    return found

"""Load the settings from flags, environment and a TOML file.

A value comes from a flag, else from a `GATEWAY_*` variable, else from the TOML file, else
from its default. All problems are found before any is reported.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway import nesting
from gateway.config import cross_checks
from gateway.config.problems import explain, member
from gateway.config.settings import Config
from gateway.config.urls import TLS
from gateway.errors import ConfigError
from gateway.model import Text
from gateway.similar import similar
from gateway.sources import is_known

_NAME = "GATEWAY_"
#: Variables that are read and are not settings: the file's name, the app server's, the tests'.
_OTHERS = (
    "CONFIG", "QUEUES", "FAIR_QUEUES", "FAIR_PREFETCH", "FAIR_TYPE", "WORKER_CHATTER",
    "WORKER_STREAM", "FAILPOINT",
)  # fmt: skip
#: Settings that only a file can have.
_TABLES = ("tls", "notify", "sources", "routes", "admin_roles")
# Kubernetes describes a service called `gateway`, or `gateway-something`, in such variables.
# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE = re.compile(
    r"GATEWAY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
).fullmatch
#: A route's place, whose parts may be keys in quotation marks.
_ROUTE = re.compile(r'routes\[(?P<number>\d+)\](?:"(?:[^"\\]|\\.)*"|[^:\s"])*').search
_ADDRESS = ("tcp://", "udp://", "sctp://")
#: No number is as large: TOML, AMQP and Redis have 64 bits.
_END = 2**63


def load(flags: Mapping[str, Any], environ: Mapping[str, str], path: Path | None = None) -> Config:
    """Make the configuration from `flags`, `environ` and the TOML file at `path`.

    Without `path`, `GATEWAY_CONFIG` names the file; without that there is none. A flag that is None
    was not given. Raises `ConfigError` with all problems.
    """
    file = _read(environ, path)
    path = _file(environ, path)
    problems: list[str] = []
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name in sorted(environ):
        if name.startswith(_NAME) and not _is_text(environ[name]):
            problems.append(f"environment {name}: it is not UTF-8")
    for name, value in file.items():
        values[name] = _secrets(value, f"{path}: {name}", environ, problems)
        places[name] = f"{path}: "
    for name in Config.model_fields:
        text = environ.get(_NAME + name.upper(), "")
        if name in _TABLES or text.startswith(_ADDRESS):
            continue
        if text or (name == "result_backend" and _NAME + name.upper() in environ):
            values[name] = text.split(",") if name == "trusted_proxies" else Text(text)
            places[name] = f"environment {_NAME}{name.upper()}: "
    for name in TLS.model_fields:
        text = environ.get(f"{_NAME}TLS_{name.upper()}", "")
        if text and isinstance(values.setdefault("tls", {}), dict):
            values["tls"] = {**values["tls"], name: Text(text)}
            places["tls"] = f"environment {_NAME}TLS_{name.upper()}: "
    for name, value in flags.items():
        if value is not None:
            values[name] = Text(value) if isinstance(value, str) else value
            flag = "broker" if name == "broker_url" else name.replace("_", "-")
            places[name] = f"--{flag}: "
    if flags.get("port") is not None and flags.get("uds") is None:
        values.pop("uds", None)
    try:
        config = Config.model_validate(values)
        # Where a value could not be read, these checks would report it as missing.
        found = [] if problems else cross_checks.problems(config)
    except ValidationError as exc:
        found = explain(exc, Config)
    unread = {problem.removeprefix(f"{path}: ").split(": ")[0] for problem in problems}
    for line in found:
        where = line.split(": ")[0]
        if any(where in (place, place.rpartition("[")[0]) for place in unread):
            continue  # the value could not be read, which is reported already
        setting = re.split(r"[:.\[]", line)[0]
        place = places.get(setting, "")
        if place and place != f"{path}: ":  # a flag or a variable names the setting already
            line = line.removeprefix(f"{setting}: ")
        problems.append(place + line)
    if problems:
        raise ConfigError([_with_path(problem, file.get("routes")) for problem in problems])
    return config


def read_sources(
    environ: Mapping[str, str], path: Path | None
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the tables of sources in the file, whose secrets are not read yet, and `public_url`.

    Raises `ConfigError` where the file cannot be read, and where a source has no known scheme.
    """
    file = _read(environ, path)
    url = environ.get(f"{_NAME}PUBLIC_URL") or file.get("public_url", "")
    public_url = read_secrets(url, "public_url", environ)
    sources = file.get("sources", {})
    tables = sources.values() if isinstance(sources, dict) else [sources]
    if not isinstance(public_url, str) or not all(map(is_known, tables)):
        load({}, environ, path)  # which says what is wrong
    return sources, public_url


def read_secrets(value: Any, place: str, environ: Mapping[str, str]) -> Any:
    """Return what a setting has, with its secrets; `place` is its name.

    Raises `ConfigError` where a secret cannot be read.
    """
    problems: list[str] = []
    found = _secrets(value, place, environ, problems)
    if problems:
        raise ConfigError(problems)
    return found


def _with_path(problem: str, routes: Any) -> str:
    """Add the route's path to a place like ``routes[2].queue``, so that it need not be counted."""
    found = _ROUTE(problem)
    if not found or not isinstance(routes, list) or int(found["number"]) >= len(routes):
        return problem
    route = routes[int(found["number"])]
    path = route.get("path") if isinstance(route, dict) else None
    if not isinstance(path, str) or not path.isprintable():  # `{ env = }` may be a secret
        return problem
    return f"{problem[: found.end()]} (path {path:.80}){problem[found.end() :]}"


def described(config: Config, environ: Mapping[str, str], path: Path | None) -> str:
    """Describe in a few words the configuration that `load` made from the same arguments."""
    file = _file(environ, path) or "no file (--config, GATEWAY_CONFIG)"
    number = len(config.routes)
    return f"{file}, {number} route{'s' * (number != 1)}, strategy {config.strategy}"


def unknown_variables(environ: Mapping[str, str], path: Path | None) -> dict[str, str]:
    """Return the GATEWAY_* variables that are not read, each with the most similar known name.

    The name is empty where none is similar. Variables that the file names as ``{ env = NAME }`` are
    read.
    """
    settings = (name.upper() for name in Config.model_fields if name not in _TABLES)
    names = [*settings, *(f"TLS_{name.upper()}" for name in TLS.model_fields), *_OTHERS]
    named: set[str] = set()
    with suppress(ConfigError):  # `load` says what is wrong with the file
        named = named_variables(environ, path)
    found = {}
    for name, text in sorted(environ.items()):
        own = name.removeprefix(_NAME)
        if own == name or own in names or name in named:
            continue
        if _SERVICE(name) or text.startswith(_ADDRESS):
            continue
        near = similar(own.upper(), names)
        found[name] = _NAME + near if near else ""
    return found


def named_variables(environ: Mapping[str, str], path: Path | None) -> set[str]:
    """Return the names in all ``{ env = NAME }`` of the file that `load` reads.

    Raises `ConfigError` where the file cannot be read.
    """
    tables = (each for each in nesting.walk(_read(environ, path)) if isinstance(each, dict))
    return {str(each["env"]) for each in tables if each.keys() == {"env"}}


def _file(environ: Mapping[str, str], path: Path | None) -> Path | None:
    return path or (Path(environ["GATEWAY_CONFIG"]) if environ.get("GATEWAY_CONFIG") else None)


def _read(environ: Mapping[str, str], path: Path | None) -> dict[str, Any]:
    """Return what is in the file that `path`, or else GATEWAY_CONFIG, names; empty: none is named.

    Raises `ConfigError` where the file cannot be read, or is not valid TOML.
    """
    file = _file(environ, path)
    if file is None:
        return {}
    try:
        found = tomllib.loads(file.read_text("utf-8-sig"))
        nesting.check_depth(found)
        return found
    except OSError as exc:
        leave = "unset GATEWAY_CONFIG" if path is None else "leave out --config"
        name = "GATEWAY_CONFIG" if path is None else "--config"
        problem = f"{file}: cannot be read: {exc.strerror}"
        remedy = f"{name} names this file: correct the path, let this account read it, or {leave}"
        raise ConfigError([f"{problem}; {remedy}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError([f"{file}: byte {exc.start} is not UTF-8; save it as that"]) from exc
    except RecursionError as exc:
        raise ConfigError([f"{file}: it is nested over {nesting.MAX_LEVELS} levels deep"]) from exc
    except tomllib.TOMLDecodeError as exc:
        hint = "; write [[routes]] for each route" if "('routes',)" in str(exc) else ""
        raise ConfigError([f"{file}: not valid TOML: {exc}{hint}"]) from exc


def _is_text(text: str) -> bool:
    """Tell whether a variable had UTF-8: Python has halves of characters for what is not."""
    return text.encode(errors="replace").decode() == text


def _secrets(value: Any, place: str, environ: Mapping[str, str], problems: list[str]) -> Any:
    """Replace all ``{ env = NAME }`` and ``{ file = PATH }`` inside `value` by their text.

    What no setting can be, not even a value of JSON, is one of the `problems`.
    """
    if isinstance(value, list):
        return [_secrets(v, f"{place}[{i}]", environ, problems) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        number = isinstance(value, int | float)
        if isinstance(value, date | time) or (number and not -_END <= value < _END):  # or it is NaN
            problems.append(
                f"{place}: dates, nan, inf and numbers of more than 64 bits cannot be used; write "
                "a text in quotation marks, or another number"
            )
        return value
    if value.keys() == {"env"}:
        text = environ.get(value["env"]) if isinstance(value["env"], str) else None
        if text is not None and _is_text(text):
            return Text(text)
        wrong = "set" if text is None else "UTF-8"
        problems.append(f"{place}: the environment variable {value['env']} is not {wrong}")
        return ""
    if value.keys() == {"file"}:
        try:
            return Text(Path(os.fspath(value["file"])).read_text("utf-8-sig").strip())
        except (OSError, TypeError, ValueError) as exc:  # ValueError: not UTF-8, or not a path
            reason = getattr(exc, "strerror", None) or exc
            problems.append(f"{place}: the file {value['file']} cannot be read: {reason}")
            return ""
    return {k: _secrets(v, place + member(k), environ, problems) for k, v in value.items()}

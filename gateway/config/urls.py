"""The URLs of brokers and stores, as Celery's workers read them, and TLS: one URL serves all.

Options in a URL are read here. redis-py would let them take precedence over what the gateway's own
connections need, and knows other words than Celery. An option that workers cannot use is refused.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection, Mapping
from os.path import isfile
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kombu.utils.url import url_to_parts
from pydantic import model_validator

from gateway.model import File, Model
from gateway.similar import meant

#: In words what a value has to be, and what tells whether it is.
_Value = tuple[str, Callable[[str], object]]
_Options = Mapping[str, _Value]

_ESCAPED = "in a password write # / ? @ : as %23 %2F %3F %40 %3A"
_NUMBER: _Value = ("a number", re.compile(r"\d+(\.\d+)?").fullmatch)
_WHOLE: _Value = ("a whole number", re.compile(r"\d+").fullmatch)
_BOOL: _Value = ("true or false", re.compile(r"true|false", re.I).fullmatch)
_TEXT: _Value = ("a text", bool)
_FILE: _Value = ("the path of a file that exists", isfile)
_REQUIRED: _Value = (
    "CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE",
    re.compile(r"CERT_(REQUIRED|OPTIONAL|NONE)|required|optional|none").fullmatch,
)
_HEARTBEAT: _Value = (
    "whole seconds, at most 3600; 0: none are sent",
    lambda text: text.isascii() and text.isdecimal() and int(text) <= 3_600,
)
_LOGIN: _Value = ("PLAIN or AMQPLAIN", re.compile("PLAIN|AMQPLAIN").fullmatch)

_SECURE: dict[str, _Value] = {
    "ssl_cert_reqs": _REQUIRED,
    "ssl_ca_certs": _FILE,
    "ssl_certfile": _FILE,
    "ssl_keyfile": _FILE,
    "ssl_check_hostname": _BOOL,
}
#: What a worker's client may do in its own way. The gateway's connections do not take part in it.
_CLIENT: dict[str, _Value] = {
    "client_name": _TEXT,
    "decode_responses": _BOOL,
    "health_check_interval": _WHOLE,
    "max_connections": _WHOLE,
    "protocol": ("2 or 3", re.compile("[23]").fullmatch),
    "retry_on_timeout": _BOOL,
    "socket_connect_timeout": _NUMBER,
    "socket_keepalive": _BOOL,
    "socket_timeout": _NUMBER,
}
_STORE: dict[str, _Value] = {"db": _WHOLE, **_CLIENT}
#: The options of a store's URL, by its scheme.
_OF_STORES: dict[str, _Options] = {
    "redis": _STORE,
    "rediss": {**_STORE, **_SECURE},
    "sentinel": {"master_name": _TEXT, "ssl": _BOOL, **_STORE, **_SECURE},
}
#: The options of a broker's URL, by its scheme: kombu has no others that work.
_OF_BROKERS: dict[str, _Options] = {
    "amqp": {"heartbeat": _HEARTBEAT, "login_method": _LOGIN},
    "amqps": {"heartbeat": _HEARTBEAT, "login_method": _LOGIN},
    "redis": {"heartbeat": _HEARTBEAT},
    "rediss": {"heartbeat": _HEARTBEAT, **_SECURE},
}
#: Parts of a URL that redis-py would also take from its options.
_BEFORE = ("host", "hostname", "password", "path", "port", "userid", "username", "virtual_host")
#: What does have an effect, by the URL's scheme.
_INSTEAD = {
    "amqp": "use amqps://, and [tls] (the workers: broker_use_ssl, the app server: GATEWAY_TLS_CA)",
    "amqps": "use [tls] (the workers: broker_use_ssl, the app server: GATEWAY_TLS_CA)",
    "redis": "use rediss://",
}

_database = re.compile(r"/*\d*/*").fullmatch
_several = re.compile(r"[;,]\s*[a-z]+://").search
_is_host = re.compile(r"[^\s;,]+").fullmatch


class TLS(Model):
    """The paths of PEM files for amqps:// and rediss://."""

    ca: File | None = None
    """(default: the system's) a PEM file of authorities"""
    cert: File | None = None
    """the client's own certificate, a PEM file"""
    key: File | None = None
    """the key of `cert`, a PEM file"""
    verify: bool = True
    """the certificate has to come from such an authority and name the URL's host; false: every
    certificate is accepted"""

    @model_validator(mode="after")
    def _usable(self) -> TLS:
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not isfile(path):
                raise ValueError(f"{name}: no such file, or this account may not see it: {path}")
        if self.key and not self.cert:
            raise ValueError("key: needs a certificate; set cert, too")
        if names := [name for name in ("ca", "cert", "key") if getattr(self, name)]:
            try:
                self.context()
            except OSError as exc:  # one of OpenSSL is one, too
                raise ValueError(
                    f"{', '.join(names)}: {exc}; name PEM files that this account may read, a key "
                    "without a password, and the certificate of that key"
                ) from exc
        return self

    def context(self) -> ssl.SSLContext:
        """Return the client's TLS context; raises OSError where a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key, "")  # it would ask for a password
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def check(url: str, schemes: Collection[str]) -> None:
    """Raise ValueError, without quoting the URL, unless it has a known scheme and one host."""
    needed = f"has to be a URL with a host that begins with {':// or '.join(schemes)}://"
    if url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        needed = f"has to have a host, and a port of 1 to 65535, if any; {_ESCAPED}"
    if url.startswith(("rpc://", "rpc+")):
        needed = (
            "rpc:// is a setting of the workers; leave this empty with the strategy pika, or give "
            f"the URL of a Redis ({'://, '.join(schemes)}://)"
        )
    try:
        parts = urlsplit(url)
        if parts.scheme in schemes and _is_host(parts.hostname or "") and parts.port != 0:
            return
    except ValueError as exc:
        raise ValueError(needed) from exc
    raise ValueError(needed)


def check_broker(url: str) -> None:
    """Raise ValueError, without quoting the URL, unless workers can use it as their broker."""
    _check_part(url, _OF_BROKERS)


def check_store(url: str) -> None:
    """Raise ValueError, without quoting the URL, unless workers can use it for their results."""
    sentinel = url.startswith("sentinel:")
    if not sentinel and _several(url):
        raise ValueError(
            "Celery knows no list of such servers; give one URL, or a list of Sentinels with "
            "sentinel://"
        )
    parts = _parts(url)
    allowed = {"sentinel": _OF_STORES["sentinel"]} if sentinel else _OF_STORES
    for part in parts:
        _check_part(part, allowed)
    if len({name for part in parts if (name := options(part).get("master_name"))}) > 1:
        raise ValueError("has several values of master_name=; give one")
    if sentinel and not secure(url) and (unused := _SECURE.keys() & options(url).keys()):
        raise ValueError(f"{min(unused)}= has no effect without ssl=true; add that")


def check_archive(url: str) -> None:
    """Raise ValueError, without quoting the URL, unless it names a database for the archive."""
    if url.startswith("sqlite:///"):
        if not url.removeprefix("sqlite:///"):
            raise ValueError("sqlite:/// is followed by the path of a file")
        return
    if url.startswith("sqlite:"):
        raise ValueError("is written as sqlite:///file.db, or sqlite:////absolute/file.db")
    check(url, ("postgresql",))
    parts = urlsplit(url)
    # What follows may be the rest of a password, so it is not quoted.
    if parts.fragment or f"{parts.netloc}{parts.path}{parts.query}".count("@") > 1:
        raise ValueError(f"has a character that has to be escaped; {_ESCAPED}")


def _check_part(url: str, allowed: Mapping[str, _Options]) -> None:
    check(url, allowed)
    parts, query = urlsplit(url), _query(url)
    # What follows may be the rest of a password, so it is not quoted.
    if parts.fragment or "@" in f"{parts.path}{parts.query}":
        raise ValueError(f"has a character that has to be escaped; {_ESCAPED}")
    if not parts.scheme.startswith("amqp") and not _database(parts.path):
        raise ValueError(f"the database after the host has to be a number; {_ESCAPED}")
    names = [name for name, _ in query]
    for name, value in query:
        problem = _problem(name, value, parts.scheme, allowed[parts.scheme])
        if names.count(name) > 1:
            problem = problem or f"has several values of {name}=; give one"
        if problem:
            raise ValueError(problem)


def _problem(name: str, value: str, scheme: str, allowed: _Options) -> str:
    """Return why an option cannot be used, with the remedy; empty: it can."""
    if name in allowed:
        what, valid = allowed[name]
        return "" if valid(value) else f"{name}= has to be {what}"
    if not name.isprintable():
        return f"has an option that is no text; {_ESCAPED}"
    if name in _BEFORE:
        return f"{name}= is not read: write {scheme}://USER:PASSWORD@HOST:PORT/..."
    if name in _SECURE:
        return f"{name}= has no effect on workers in a URL with {scheme}://; {_INSTEAD[scheme]}"
    return f"gateway and workers do not both know the option {name}=; {meant(name, allowed)}"


def options(url: str) -> dict[str, str]:
    """Return the options of a valid URL; of a list of Sentinels those of all its parts."""
    return {name: value for part in _parts(url) for name, value in _query(part)}


def _parts(url: str) -> list[str]:
    return url.split(";") if url.startswith("sentinel:") else [url]


def _query(url: str) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(url).query)


def database(url: str) -> str:
    """Return the database of a Redis' URL, as Celery finds it."""
    parts = url_to_parts(url)
    return str(parts.query.get("db") or (parts.path or "").strip("/") or "0")


def without_options(url: str) -> str:
    """Return a store's URL without options, for a client that has its own."""
    return ";".join(
        urlsplit(part)._replace(path=f"/{database(part)}", query="").geturl()
        for part in _parts(url)
    )


def at(url: str, host: str, port: int) -> str:
    """Return the URL of another server with the same account and options."""
    parts = urlsplit(url)
    account = parts.netloc.rpartition("@")[0]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return parts._replace(netloc=f"{account}@{place}" if account else place).geturl()


def master_name(url: str) -> str:
    """Return the name of the master that a sentinel URL asks for."""
    return options(url).get("master_name", "mymaster")


def secure(url: str) -> bool:
    """Tell whether a store is connected to with TLS: also Sentinels, and the Redis behind them."""
    return url.startswith("rediss:") or options(url).get("ssl", "").lower() == "true"


def redis_tls(url: str, tls: TLS) -> dict[str, Any]:
    """Return redis-py's options for TLS: those of a URL with TLS, and otherwise those of `tls`."""
    if not secure(url):
        return {}
    own = options(url)
    needed = own.get("ssl_cert_reqs", "required" if tls.verify else "none")
    needed = needed.removeprefix("CERT_").lower()
    named = own.get("ssl_check_hostname", "true").lower() == "true"
    # A certificate in the URL does not belong to the key in `tls`.
    cert, key = (None, None) if "ssl_certfile" in own else (tls.cert, tls.key)
    files = {"ssl_ca_certs": tls.ca, "ssl_certfile": cert, "ssl_keyfile": key}
    return {
        **{name: own.get(name) or (path and str(path)) for name, path in files.items()},
        "ssl_cert_reqs": needed,
        "ssl_check_hostname": named and needed != "none",
    }

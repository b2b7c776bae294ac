"""Sign a webhook as its sender would, encrypt it where the scheme does so, and send it."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.answer import PROBLEM
from gateway.cli import shown, tell
from gateway.cli.outgoing import Outgoing, checked_url, signed_request, without_account
from gateway.clock import time
from gateway.config.loading import read_secrets, read_sources
from gateway.config.problems import explain
from gateway.delivery import Request
from gateway.errors import BadRequest, ConfigError, GatewayError, RequestError, Unverified
from gateway.model import Text
from gateway.shell import curl
from gateway.similar import similar
from gateway.sources import SCHEMES, of, options_class
from gateway.sources.base import Draft, Source, Verified
from gateway.sources.wechat_crypto import CryptoOptions, MessageCrypto
from gateway.sources.wechat_message import Message

TIMEOUT = 60.0  # seconds without a byte of the answer
_MOST = 16 * 2**20  # bytes of an answer
#: Headers of the answer that are not printed.
_NOT_PRINTED = {"date", "server", "connection", "keep-alive", "content-length", "transfer-encoding"}


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="where to")
    text = "a source of the configuration, or a scheme; `gateway senders` lists them"
    add("--as", dest="name", metavar="NAME", required=True, help=text)
    add("--config", metavar="FILE", type=Path, help="gateway.toml")
    text = (
        "to use instead of the source's own; env:NAME reads it from the variable NAME, here and "
        "in the options below. Where the secret is a public key: the private one. May be given "
        "several times"
    )
    add("--secret", action="append", metavar="S", help=text)
    add("--aes-key", metavar="KEY", help="the EncodingAESKey")
    add("--receive-id", metavar="ID", help="the app id or corp id")
    text = "any other of the scheme's options"
    add("--option", metavar="KEY=VALUE", action="append", default=[], help=text)
    add("--event", metavar="E", default="", help="the event's name")
    add("--id", dest="identity", metavar="ID", help="what identifies the delivery")
    add("--data", metavar="TEXT|@FILE|-", help="the body; default: the scheme's sample")
    add("--curl", action="store_true", help="print a curl line, send nothing")


def run(arguments: argparse.Namespace) -> int:
    url = checked_url("URL", arguments.url)
    source = _source(arguments, url)
    outgoing = _outgoing(source, arguments, url)
    if arguments.curl:
        print(curl("POST", *outgoing))
        return 0
    status = _send(outgoing, source)
    if status == 400 and arguments.data is None:
        tell("the body was the scheme's sample; send your own: --data TEXT or @FILE")
    elif status == 204:
        event = f"the event {arguments.event!r}" if arguments.event else "no event (see --event)"
        tell(f"a 204: it was sent with {event}, which perhaps no route takes; the log says so")
    return 0 if 200 <= status < 300 else 1


def _source(arguments: argparse.Namespace, url: str) -> Source:
    # Nothing else of the file is needed, nor are the secrets of other sources.
    sources, public_url = read_sources(os.environ, arguments.config)
    name = arguments.name
    if name not in sources and name not in SCHEMES:
        near = similar(name, [*sources, *SCHEMES])
        hint = f"did you mean {near}? " if near else ""
        hint += "" if sources else "--config FILE names the file with your sources; "
        hint += "`gateway senders` lists the schemes"
        raise ConfigError([f"--as: {name} is neither a source nor a scheme; {hint}"])
    values = _source_options(arguments, os.environ)
    if name in sources:
        own = {key: value for key, value in sources[name].items() if key not in values}
        values = {**read_secrets(own, f"sources.{name}", os.environ), **values}
    elif "secrets" not in values:
        remedy = "--secret env:NAME takes it from a variable"
        raise ConfigError([f"--secret: the scheme {name} needs it; {remedy}"])
    if name not in sources:
        values["scheme"] = name
    try:
        found = options_class(values)
        chosen = found.model_validate(values)
    except ValidationError as exc:
        raise ConfigError(explain(exc, found, f"{name}: ")) from exc
    except ValueError as exc:
        raise ConfigError([f"{name}: {exc}"]) from exc
    parts = urlsplit(url)
    return of(chosen)(chosen, public_url or f"{parts.scheme}://{parts.netloc}")


def _source_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the source's options that were given on the command line."""
    pairs = {"aes_key": arguments.aes_key, "receive_id": arguments.receive_id}
    for text in arguments.option:
        key, equals, pairs[key] = text.partition("=")
        if not equals:
            raise ConfigError([f"--option: {text} is not of the form KEY=VALUE"])

    def read(key: str, text: str) -> str:
        if not text.startswith("env:"):
            return Text(text)
        variable = text.removeprefix("env:")
        if variable not in environ:
            raise ConfigError([f"{key}: the environment variable {variable} is not set"])
        return Text(environ[variable])

    values: dict[str, Any] = {k: read(k, text) for k, text in pairs.items() if text is not None}
    if arguments.secret:
        values["secrets"] = [read("secrets", text) for text in arguments.secret]
    return values


def _outgoing(source: Source, arguments: argparse.Namespace, url: str) -> Outgoing:
    now = time()
    identity = arguments.identity or str(secrets.randbelow(10**15))
    event = arguments.event
    if arguments.data is None:
        token = getattr(source.options, "verification_token", None)
        token = token.get_secret_value() if token else ""
        event, body = source.sample(event, identity, now, token)
    else:
        body = _read(arguments.data)
    outgoing = signed_request(source, Draft(body, url, now, event, identity))
    if arguments.secret is None and (verified := _verify(source, outgoing, now)):
        _compare("--event", arguments.event, "event", verified.event)
        # A sample without an identity has the id in its body, whose digest identifies it.
        if arguments.data is not None or not verified.identity:
            _compare("--id", arguments.identity or "", "identity", verified.identity)
    return outgoing


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as exc:
        raise ConfigError([f"--data: {text[1:]} cannot be read: {exc.strerror}"]) from exc


def _compare(flag: str, value: str, name: str, found: str) -> None:
    """Print a warning if the flag's value, if any, is not in what was `found`."""
    if value not in found:
        has = f"the {name} of this delivery is {found}" if found else f"this delivery has no {name}"
        why = "the source reads it elsewhere, or not at all"
        tell(f"{flag} {value}: {has}, as {why}")


def _verify(source: Source, outgoing: Outgoing, now: float) -> Verified | None:
    """Return what the source will make of the request; print a warning if it will refuse it.

    For example, a source may have a public key, with which it cannot sign.
    """
    parts = urlsplit(outgoing.url)
    headers = {name.lower(): value for name, value in outgoing.headers.items()}
    try:
        return source.verify(
            Request("POST", parts.path, parts.query, headers, outgoing.body, "", 0.0, now)
        )
    except RequestError as exc:  # only a warning, as the user may want to see the refusal
        hint = " Give a private key by --secret." if isinstance(exc, Unverified) else ""
        tell(f"the source will refuse this: {exc}{hint}")
        return None


def _send(outgoing: Outgoing, source: Source) -> int:
    """Send it, print the answer, and return its status."""
    parts = urlsplit(outgoing.url)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=TIMEOUT)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    where = urlsplit(without_account(outgoing.url)).netloc
    try:
        connection.request("POST", target, outgoing.body, outgoing.headers)
        response = connection.getresponse()
        body = response.read(_MOST)
        if response.length:
            raise IncompleteRead(body, response.length)
    except OSError as exc:
        problem = f"{exc.strerror or exc}; start the gateway, or correct URL"
        raise GatewayError(f"{where}: {problem}") from exc
    except HTTPException as exc:
        problem = f"no complete answer in HTTP ({type(exc).__name__}: {str(exc).strip()})"
        raise GatewayError(f"{where}: {problem}; correct URL, or see its log") from exc
    except ValueError as exc:  # not quoted, as it may be a secret
        problem = "a header would have a line break, or letters that HTTP does not have"
        raise GatewayError(f"{problem}; correct --event, --id or --secret") from exc
    finally:
        connection.close()
    print(shown(f"{response.status} {response.reason}"))
    for name, value in response.getheaders():
        if name.lower() not in _NOT_PRINTED:
            print(shown(f"{name}: {value}"))
    opened = _opened(body, source)
    if opened is not None:
        print("(decrypted)")
    text = (body if opened is None else opened).decode(errors="replace")
    print("", *map(shown, text.split("\n")), sep="\n")
    failed = not 200 <= response.status < 300
    if failed and (reason := _reason(response.getheader("Content-Type", ""), body)):
        tell(reason)
    return response.status


def _reason(content_type: str, body: bytes) -> str:
    """Return the detail of a gateway's error; empty where the answer is not one."""
    if content_type != PROBLEM:
        return ""
    with suppress(ValueError, RecursionError):
        problem = json.loads(body)
        if isinstance(problem, dict) and isinstance(problem.get("detail"), str):
            return str(problem["detail"])
    return ""


def _opened(body: bytes, source: Source) -> bytes | None:
    """Decrypt a reply; None where it is not encrypted.

    Raises `GatewayError` where its signature is wrong.
    """
    if not isinstance(source.options, CryptoOptions) or not source.options.aes_key:
        return None
    try:
        reply = Message.read(body)
    except BadRequest:
        return None
    if not reply.get("encrypt"):
        return None
    query = {"timestamp": reply.get("timestamp"), "nonce": reply.get("nonce")}
    signature = reply.get("msgsignature") or reply.get("msg_signature")
    try:
        opened = MessageCrypto(source.options).open(signature, query, reply.get("encrypt"))
    except Unverified as exc:
        raise GatewayError("the reply's signature is wrong, or it cannot be decrypted") from exc
    return opened.message

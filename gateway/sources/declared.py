"""Sources that are made from blocks of data: everything about one follows from its block."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, ClassVar, Literal
from urllib.parse import quote_plus, urlsplit
from uuid import uuid4

from pydantic import Field, SecretStr, create_model, field_validator, model_validator

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.errors import BadRequest, KeyNotKnown, SignatureMismatch, Unverified
from gateway.sources import compiled, proofs, reading
from gateway.sources.base import Draft, KeyRequest, Options, Signed, Source, Verified
from gateway.sources.block import PLACEHOLDER, Block
from gateway.sources.places import AS_RECEIVED, Place, Seen
from gateway.sources.proofs import Key
from gateway.sources.reading import at, pointer, put, read_if_json, read_json, read_loosely


class Declared(Source):
    """A source that follows a block. Its subclasses are made by `source_of`."""

    block: ClassVar[Block]

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._block = block = options if isinstance(options, Block) else self.block
        self._unit = compiled.unit_of(block)
        self._keys, texts = read_secrets(options.secrets, block)
        self._readers = readers = compiled.Readers(block, options, public_url, texts)
        self.fetches = not self._keys
        own = any("{key}" in text for text in block.require.values())
        self.shared_key = own and bool(block.key_url) and not texts
        self._fetched = self._fetching() if self.fetches else None
        proofs = [place.name for place in block.signature if place.kind == "header"]
        self.secret_headers = frozenset([*proofs, *block.secret_headers])
        known = None if block.event else ()
        self.events = known if block.events is None else tuple(block.events)
        self._given = compiled.token(readers) if block.is_jwt else compiled.signatures(block)
        clock = compiled.time_check(readers, options.tolerance)
        # What has to be parsed is read after the proof where that is possible.
        late = block.is_jwt or any(place.is_parsed for place in block.time)
        self._early = [] if late else clock
        self._late = [*(clock if late else []), *compiled.requirements(readers)]
        self._late += compiled.each_item(block, self._keys)
        parsed = any(place.is_parsed for place in block.places_of("signature", "signed"))
        self._largest = (block.max_body or reading.MAX_UNPROVEN) if parsed else None
        self._parts, self._event = compiled.signed_parts(readers), compiled.events(readers)
        self._identity = compiled.identities(readers)
        answers = [
            (each, compiled.handshake(each, readers, self._prove, self._sign))
            for each in block.handshakes
        ]
        self._others = [(each.method, answer) for each, answer in answers if each.method != "POST"]
        self._posts = [answer for each, answer in answers if each.method == "POST"]
        unsigned = [(each, answer) for each, answer in answers if not each.is_signed]
        self._unsigned = [answer for each, answer in unsigned if each.method == "POST"]
        self._signs_for_anybody = any(each.signs for each, _ in unsigned)

    @classmethod
    def needs_url(cls, options: Options) -> bool:
        block = options if isinstance(options, Block) else cls.block
        called = "{audience}" in block.require.values() and not getattr(options, "audience", "")
        answers = getattr(options, "verify_token", None) and any(
            "{url" in each.sha256 for each in block.handshakes
        )
        return bool(cls.needs_public_url or called or answers)

    @property
    def covers_body(self) -> bool:
        return self._block.covers_body

    def verify(self, request: Request) -> Verified:
        seen = Seen(request)
        if self._unsigned and self.secret_headers.isdisjoint(request.headers):
            for answer_to in self._unsigned if len(request.body) <= reading.MAX_UNPROVEN else ():
                if answer := answer_to(seen):
                    return Verified(request.body, challenge=answer)
        self._prove(seen)
        if self._readers.parses and "json" not in vars(seen):
            seen.json = read_loosely(request.body)
        seen.event = event = self._event(seen)
        for answer_to in self._posts:
            if answer := answer_to(seen):
                return Verified(request.body, event=event, challenge=answer)
        return Verified(seen.content, self._identity(seen), event)

    def handshake(self, request: Request) -> Answer:
        if not self._others:
            return super().handshake(request)
        seen = Seen(request)
        for method, answer_to in self._others:
            if method == request.method and (answer := answer_to(seen)):
                return answer
        raise Unverified("A parameter or a header of the handshake is missing.")

    def _prove(self, seen: Seen) -> None:
        """Raise `Unverified` unless the request has a signature by one of the keys."""
        if self._largest is not None:
            reading.check_unproven(seen.body, self._largest)
        given = self._given(seen)
        for check in self._early:
            check(seen)
        parts = self._parts(seen)
        for key in self._keys if self._fetched is None else self._fetched(seen):
            if key.verifies(given, parts):
                seen.key = key
                break
        else:
            raise SignatureMismatch
        for check in self._late:
            check(seen)
        if self._signs_for_anybody and compiled.is_token(b"".join(parts)):
            raise Unverified("The signed text could be a handshake's token.")

    def _fetching(self) -> Callable[[Seen], Sequence[Key]]:
        """Return a function that looks up the public keys which a request may be signed with."""
        block = self._block
        patterns = block.key_urls or [PLACEHOLDER.sub("*", block.key_url)]
        allowed = re.compile("|".join(map(_url_pattern, patterns)), re.ASCII).fullmatch
        read_keys = partial(keys_in, block=block, texts=self._readers.texts)
        url_of, named = self._readers.filled(block.key_url), block.key_form in ("jwks", "kids")
        text = b"".join(self._readers.texts[:1]).decode()
        headers = {k: v.replace("{key}", text) for k, v in block.key_headers.items()}

        def request(url: str) -> KeyRequest:
            if not allowed(url):
                raise Unverified("The public key is to be fetched from where this sender has none.")
            return KeyRequest(url, headers, read_keys, block.key_token, text)

        if not PLACEHOLDER.search(block.key_url):
            self.key_requests = [request(block.key_url)]

        def keys(seen: Seen) -> Sequence[Key]:
            if self.key_store is None:
                raise KeyNotKnown
            wanted = request(url_of(seen)[0].decode("latin-1"))._replace(asker=seen.request.remote)
            found, kid = self.key_store.get(wanted), seen.token.kid if named else ""
            if kid not in found:
                found = self.key_store.get(wanted, newer=True)
            if kid not in found:
                raise Unverified("This sender has no key with the id that the token names.")
            chosen: Sequence[Key] = found[kid]
            return chosen

        return keys

    def _sign(self, seen: Seen, value: bytes) -> bytes:
        """Sign a token of a handshake with the key that has verified the request."""
        key = seen.key or self._keys[0]
        return key.sign([value]).removeprefix(self._block.prefix.encode())

    def sample(self, event: str, identity: str, now: float, token: str = "") -> tuple[str, bytes]:
        """Return a sample of the block or, where it has none, a body with all that is read."""
        if self._block.samples:
            return super().sample(event, identity, now, token)
        message: Any = {"id": identity, "type": event or "hello"}
        event = event or ("hello" if self._block.event else "")
        for place, value in self._values(event, identity, now):
            if place.kind == "json" and place.name:
                number = place in self._block.places_of("time") and value.isdigit()
                tokens = pointer(place.name.replace("*", "0"))
                message = put(message, tokens, int(value) if number else value)
        return event, json.dumps(message, separators=(",", ":")).encode()

    def _values(self, event: str, identity: str, now: float) -> Iterator[tuple[Place, str]]:
        """Yield the first place of each thing that is read from a delivery, and what is there."""
        block, action = self._block, ""
        if block.subevent:
            event, _, action = event.partition(".")
        codes = {text: code for code, text in block.names.items()}
        for texts, value in (
            (block.id, identity or f"msg_{uuid4().hex}"),
            (block.identity, identity),
            (block.event, codes.get(event, event)),
            (block.subevent, action),
            (block.time, self._unit.write(now)),
        ):
            if texts and value:
                yield texts[0], value

    def sign(self, draft: Draft) -> Signed:
        block, key, url = self._block, self._keys[0], urlsplit(draft.url)
        headers, fields, claims = self._named(draft)
        seen = Seen(Request("POST", url.path or "/", url.query, headers, draft.body, "", 0.0, 0.0))
        seen.sig = fields
        if block.is_jwt:
            signature = block.prefix + self._signed_token(seen, draft.now, claims)
        else:
            as_received = block.signature[0].kind in AS_RECEIVED
            signature = key.sign(self._parts(seen)).decode("latin-1" if as_received else "utf-8")
        if block.pick:
            items = [*fields.items(), (block.pick[0], signature)]
            assigned = [f"{k}{block.assign}{v}" if block.assign else v for k, v in items]
            signature = block.separators[0].join(assigned)
        place = block.signature[0]
        for each in reversed(place.filters):  # which reading the place undoes
            if each == "base64":
                signature = b64encode(signature.encode()).decode()
            elif each.startswith("json:"):
                signature = json.dumps(put({}, pointer(each.removeprefix("json:")), signature))
        if place.kind == "body":
            return Signed(signature.encode(), headers)
        if place.kind == "query":
            return Signed(draft.body, headers, {place.name: signature})
        if place.kind == "form":
            field = f"{place.name}={quote_plus(signature)}".encode()
            return Signed(b"&".join(filter(None, [draft.body, field])), headers)
        if place.kind == "json":
            message = put(seen.json, pointer(place.name.replace("*", "0")), signature)
            return Signed(json.dumps(message).encode(), headers)
        return Signed(draft.body, {**headers, place.name: signature})

    def _named(self, draft: Draft) -> Iterable[dict[str, Any]]:
        """Return the headers, the fields beside the signature, and the claims of a draft."""
        block = self._block
        kept: dict[str, dict[str, Any]] = {"header": {}, "sig": {}, "claim": {}}
        for place, value in self._values(draft.event, draft.identity, draft.now):
            kept.get(place.kind, {})[place.name] = value
        for place, value in block.require.items():
            if place.kind == "header":
                kept["header"][place.name] = value
        for place in block.places_of("signed"):
            if place.kind == "headers":
                kept["header"][place.name.partition(",")[0]] = place.name
            elif place.kind == "sig":
                kept["sig"].setdefault(place.name, "sample")
        return kept.values()

    def _signed_token(self, seen: Seen, now: float, named: dict[str, str]) -> str:
        """Return a token with the claims that are read, and those that are required."""
        readers, key = self._readers, self._keys[0]
        claims: Any = {"iat": int(now), "nbf": int(now), "exp": int(now) + 60}
        if self._block.signature == ["body"]:
            claims |= read_if_json(seen.body)
        required = {
            place.removeprefix("claim:"): readers.filled(text)(seen)[0].decode()
            for place, text in self._block.require.items()
            if readers.texts or "{key}" not in text
        }
        for path, value in {**named, **required}.items():
            claims = put(claims, pointer(path), value)
        algorithm = key.sign([b""]).partition(b".")[0].decode()
        texts = [json.dumps(each).encode() for each in ({"alg": algorithm}, claims)]
        signed = b".".join([urlsafe_b64encode(text).rstrip(b"=") for text in texts])
        return f"{signed.decode()}.{key.sign([signed]).partition(b'.')[2].decode()}"


def _url_pattern(text: str) -> str:
    """Return the expression for URLs: ``*`` is the name of a region in the host, else of a key.

    It is no dot, slash, colon or at sign, so that nothing in a request chooses the host; nor a name
    such as `s3`, behind which a provider's customers have hosts of their own.
    """
    scheme, _, host, path = text.split("/", 3)
    region = re.escape(host).replace(r"\*", "[a-z]+(-[a-z]+)*(-[0-9]{1,2})?")
    return f"{scheme}//{region}/" + re.escape(path).replace(r"\*", "[A-Za-z0-9_-]{1,200}")


#: What a source may have whose sender's handshake has a token; None: handshakes are refused.
_VERIFY_TOKEN = (SecretStr | None, Field(None, min_length=1))


def source_of(name: str, table: dict[str, Any]) -> type[Source]:
    """Return the class of a sender from the table in its file."""
    block = Block.model_validate(table)

    def usable(_cls: Any, secrets: list[SecretStr]) -> list[SecretStr]:
        read_secrets(secrets, block)
        return secrets

    checks: dict[str, Any] = {"_usable": field_validator("secrets")(classmethod(usable))}
    fields: dict[str, Any] = {"tolerance": (float, Field(block.tolerance, ge=0))}
    if any(each.token or "{token}" in each.sha256 for each in block.handshakes):
        fields["verify_token"] = _VERIFY_TOKEN
    if "{audience}" in block.require.values():
        fields["audience"] = (str, "")
    return _class(
        name, block, create_model("Options", __base__=Options, __validators__=checks, **fields)
    )


class Own(Options, Block):
    """A sender of one's own: the table of the source is the block."""

    scheme: Literal["hmac"] = "hmac"
    verify_token: SecretStr | None = Field(None, min_length=1)
    #: What ``{audience}`` stands for; the URL if it is empty.
    audience: str = ""

    @model_validator(mode="after")
    def _keys(self) -> Own:
        try:
            read_secrets(self.secrets, self)
        except ValueError as exc:
            raise ValueError(f"secrets: {exc}") from exc
        return self

    @cached_property
    def source(self) -> type[Source]:
        """The class of this source."""
        return _class("hmac", self, Own)


def own() -> type[Source]:
    """Return the class of the scheme `hmac`, whose sources are blocks of their own."""
    return _class(
        "hmac", Block.model_validate({"signature": "header:X-Signature", "id": "header:X-Id"}), Own
    )


def _class(name: str, block: Block, options: type[Options]) -> type[Source]:
    """Return the class of the source that `block` describes."""
    values = {
        "block": block,
        "options_class": options,
        "content_type": block.content_type or TEXT,
        "identifies": bool(block.identity or block.id),
        "handshakes": tuple({h.method: 0 for h in block.handshakes if h.method != "POST"}),
        "methods": tuple(block.methods),
        "needs_public_url": any(text.startswith("url") for text in block.signed_places),
    }
    same = ("deadline", "tries", "retry_after", "fallback", "max_body", "samples")
    return type(name, (Declared,), values | {key: getattr(block, key) for key in same})


# Keys ----------------------------------------------------------------------------------------

#: The most keys of a set that are read.
MAX_KEYS = 64


def read_secrets(secrets: list[SecretStr], block: Block) -> tuple[list[Key], list[bytes]]:
    """Return the keys in `secrets` and, where public keys are fetched, the texts beside them.

    What is fetched proves who has sent a request; the texts are what it has to have in it. Raises
    ValueError, with what would be valid, where a secret is of no use.
    """
    given = [secret.get_secret_value() for secret in secrets]
    if block.secret_form and not all(re.fullmatch(block.secret_form[0], text) for text in given):
        raise ValueError(block.secret_form[1])
    texts = [text for text in given if block.key_url and not _is_public(text, block)]
    if block.key_url and not texts and "{key}" in block.signed:
        raise ValueError("a public key is not enough; add what the sender signs beside the body")
    encoded = [text.encode() for text in texts]
    return [
        key for text in given if text not in texts for key in keys_of(text, block, encoded)
    ], encoded


def _is_public(secret: str, block: Block) -> bool:
    """Is a secret of a sender whose key may be fetched the public key itself?"""
    if "-----BEGIN" in secret or block.key != "spki":
        return "-----BEGIN" in secret
    from gateway.sources.public_keys import public

    with suppress(ValueError):
        return bool(public(secret, block.key, ""))
    return False


def keys_of(secret: str, block: Block, texts: Sequence[bytes]) -> list[Key]:
    """Make the keys of a secret, as `block` describes it. Raises ValueError, with what is valid.

    `texts` are what may stand for the key in the texts that are signed with a public key.
    """
    kind, algorithm, name, valid = block.key, block.algorithm, "", proofs.KINDS[block.key]
    if (algorithm == "basic" or "{name}" in block.signed) and ":" not in secret:
        raise ValueError(f"a secret is name:{'password' if algorithm == 'basic' else 'key'}")
    if algorithm in proofs.TOKENS:
        basic = b"Basic " + b64encode(secret.encode())
        return [proofs.Token(basic if algorithm == "basic" else (block.prefix + secret).encode())]
    if "{name}" in block.signed:
        name, _, secret = secret.partition(":")
    encoding = proofs.ENCODINGS[block.encoding]
    starts = [
        (block.prefix.replace("{hash}", each.rpartition("-")[2]).encode(), each)
        for each in block.algorithms
    ]
    whpk = kind == "whsec" and secret.startswith(proofs.PUBLIC)
    in_pem = block.is_jwt and (kind in proofs.PUBLIC_KINDS or "-----BEGIN" in secret)
    if (algorithm in proofs.SHARED or block.is_jwt) and not (whpk or in_pem):
        if secret.startswith(proofs.PUBLIC_TEXTS):
            raise ValueError(f"a public key is no secret; {algorithm} needs one that nobody knows")
        text = secret.encode()
        if kind == "whsec" and not secret.startswith(proofs.POLAR):
            # Supabase shows the version before it.
            text = proofs.decoded(
                secret.removeprefix("v1,").removeprefix("whsec_"), "base64", valid
            )
        elif kind in proofs.ENCODINGS:
            text = proofs.decoded(secret, kind, valid)
        if block.is_jwt:
            starts, encoding = [*proofs.JWT_SHARED.items()], proofs.ENCODINGS["base64url"]
        inside = {}
        if "{key}" in block.signed or "{name}" in block.signed:
            inside = {id(proofs.KEY): text, id(proofs.NAME): name.encode()}
        return [proofs.SharedKey(text, each, start, encoding, inside) for start, each in starts]
    # Imported when it is used: this takes time.
    from gateway.sources.public_keys import PublicKey, jwt_keys, public

    if whpk:
        if any(each.signs for each in block.handshakes):
            raise ValueError("a public key cannot sign the handshake's answer; give the secret")
        pair = public(secret.removeprefix(proofs.PUBLIC), "raw-base64", valid)
        return [PublicKey(pair, "ed25519", proofs.PUBLIC_VERSION, proofs.ENCODINGS["base64"])]
    kind = kind if kind in proofs.PUBLIC_KINDS else "pem"
    pair = public(secret, kind, proofs.KINDS[kind])
    if block.is_jwt:
        return jwt_keys(pair)
    return [PublicKey(pair, each, start, encoding, texts) for start, each in starts]


def keys_in(body: bytes, block: Block, texts: Sequence[bytes]) -> dict[str, list[Key]]:
    """Return the public keys in what was fetched, by their ids. Raises ValueError."""
    # Imported when it is used: this takes time.
    from gateway.sources.public_keys import Pair, jwt_keys, of_jwk

    if block.key_form == "pem":
        return {"": keys_of(body.decode(), block, texts)}
    try:
        document = read_json(body)
    except BadRequest as exc:
        raise ValueError(exc.detail) from exc
    if block.key_form == "jwks":
        jwks, found = document.get("keys"), {}
        for jwk in jwks[:MAX_KEYS] if isinstance(jwks, list) else ():
            with suppress(ValueError, AttributeError):  # a set may have keys for something else
                found[str(jwk.get("kid", ""))] = jwt_keys(Pair(of_jwk(jwk)))
        return found
    if block.key_form != "kids":
        document = {"": str(at(document, pointer(block.key_form)))}
    texts_by_id = {kid: text for kid, text in document.items() if isinstance(text, str)}
    return {kid: keys_of(text, block, texts) for kid, text in texts_by_id.items()}

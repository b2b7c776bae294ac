"""Sources that are made from blocks of data: everything about one follows from its block."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from gateway.answer import Answer
from gateway.delivery import Request
from gateway.errors import KeyNotKnown, SignatureMismatch, Unverified
from gateway.sources import signing
from gateway.sources.base import Draft, KeyRequest, Options, Signed, Source, Verified
from gateway.sources.block import PLACEHOLDER, Block
from gateway.sources.block_keys import keys_in, keys_of, texts_of
from gateway.sources.compiled import (
    Readers,
    events,
    handshake,
    identities,
    is_token,
    requirements,
    signatures,
    signed_parts,
    time_check,
    token,
    unit_of,
)
from gateway.sources.envelopes import MAX_UNPROVEN, check_unproven, read_loosely
from gateway.sources.keys import Key
from gateway.sources.places import Seen


class Declared(Source):
    """A source that follows a block. Its subclasses are made by `gateway.sources.making`."""

    block: ClassVar[Block]

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._block = block = options if isinstance(options, Block) else self.block
        self._unit = unit_of(block)
        secrets = [secret.get_secret_value() for secret in options.secrets]
        # With a public key that is fetched, the other secrets say what else has to fit.
        texts = texts_of(secrets, block)
        self._readers = readers = Readers(block, options, public_url, texts)
        self._keys = [key for secret in secrets for key in keys_of(secret, block, texts)]
        self.fetches = not self._keys
        own = any("{key}" in text for text in block.require.values())
        self.shared_key = own and bool(block.key_url) and not texts
        self._fetched = self._fetching() if self.fetches else None
        headers = (each for text in block.signature for each in block.places(text))
        whose = [place.name for place in headers if place.kind == "header"]
        self.secret_headers = frozenset([*whose, *block.secret_headers])
        known = None if block.event else ()
        self.events = known if block.events is None else tuple(block.events)
        self._given = token(readers) if block.is_jwt else signatures(block)
        clock, self._required = time_check(readers, options.tolerance), requirements(readers)
        proof = [text for key, text in block.texts if key in ("signature", "signed")]
        # What has to be parsed is read after the proof where that is possible.
        late = block.is_jwt or any(
            place.is_parsed for text in block.time for place in block.places(text)
        )
        self._early, self._late = None if late else clock, clock if late else None
        parsed = any(place.is_parsed for text in proof for place in block.places(text))
        self._largest = (block.max_body or MAX_UNPROVEN) if parsed else None
        self._parts, self._event = signed_parts(readers), events(readers)
        self._identity = identities(readers)
        answers = [
            (each, handshake(each, readers, self._prove, self._sign)) for each in block.handshakes
        ]
        self._others = [(each.method, answer) for each, answer in answers if each.method != "POST"]
        self._posts = [answer for each, answer in answers if each.method == "POST"]
        self._unsigned = [
            answer for each, answer in answers if each.method == "POST" and not each.is_signed
        ]
        self._signs_for_anybody = any(
            text.startswith("hmac:")
            for each in block.handshakes
            if not each.is_signed
            for text in each.reads
        )

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
            for answer_to in self._unsigned if len(request.body) <= MAX_UNPROVEN else ():
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
            check_unproven(seen.body, self._largest)
        given = self._given(seen)
        if self._early is not None:
            self._early(seen)
        parts = self._parts(seen)
        for key in self._keys if self._fetched is None else self._fetched(seen):
            if key.verifies(given, parts):
                seen.key = key
                break
        else:
            raise SignatureMismatch
        if self._late is not None:
            self._late(seen)
        if self._required is not None:
            self._required(seen)
        if self._signs_for_anybody and is_token(b"".join(parts)):
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
        return signing.sample(self._block, event, identity, self._unit.write(now))

    def sign(self, draft: Draft) -> Signed:
        return signing.sign(self._readers, draft, self._keys[0], self._unit, self._parts)


def _url_pattern(text: str) -> str:
    """Return the expression for URLs: ``*`` is the name of a region in the host, else of a key.

    It is no dot, slash, colon or at sign, so that nothing in a request chooses the host; nor a name
    such as `s3`, behind which a provider's customers have hosts of their own.
    """
    scheme, _, host, path = text.split("/", 3)
    region = re.escape(host).replace(r"\*", "[a-z]+(-[a-z]+)*(-[0-9]{1,2})?")
    return f"{scheme}//{region}/" + re.escape(path).replace(r"\*", "[A-Za-z0-9_-]{1,200}")

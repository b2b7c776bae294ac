"""Encrypt and decrypt WeChat's messages; WeCom and DingTalk use the same encryption.

    signature    SHA-1, in hex, of token, timestamp, nonce and cipher text: sorted and joined
    key          base64 of the EncodingAESKey and "=", 32 bytes
    cipher text  base64 of AES-256-CBC with the key's first 16 bytes as IV, padded as PKCS#7
                 does, but to 32 bytes
    plain text   16 random bytes, the message's length (4 bytes, big endian), the message, and
                 the receive id: the id of the receiver

The signature covers the cipher text and is checked first. All errors after that give the same
answer, so that it does not show what was wrong with a cipher text.

https://developers.weixin.qq.com/doc/oplatform/developers/dev/push/encryption.html
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from hashlib import sha1
from hmac import compare_digest
from secrets import randbelow, token_bytes
from typing import Annotated, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7
from pydantic import BeforeValidator, SecretStr, field_validator, model_validator

from gateway.delivery import Request
from gateway.errors import NotDecrypted, SignatureMismatch, SignatureMissing
from gateway.sources.base import Options, as_list
from gateway.sources.proofs import check_time
from gateway.sources.reading import read_query

_BLOCK = 32
_encoding_aes_key = re.compile(r"[A-Za-z0-9+/]{43}").fullmatch


class CryptoOptions(Options):
    """The options of `MessageCrypto`; ``secrets`` are tokens, valid together with any key."""

    #: EncodingAESKeys; each of them is tried, so that a key can be replaced by another.
    aes_key: Annotated[list[SecretStr], BeforeValidator(as_list)] = []
    #: The receive ids of accepted messages ("": messages without one; "*": any).
    receive_id: Annotated[list[str], BeforeValidator(as_list)] = []

    @field_validator("aes_key")
    @classmethod
    def _of_43(cls, keys: list[SecretStr]) -> list[SecretStr]:
        if not all(_encoding_aes_key(key.get_secret_value()) for key in keys):
            raise ValueError("an EncodingAESKey has 43 characters: letters, digits, + and /")
        return keys

    @model_validator(mode="after")
    def _for_somebody(self) -> CryptoOptions:
        if self.aes_key and not self.receive_id:
            raise ValueError('receive_id: is needed together with aes_key; "*" accepts any')
        return self


@dataclass(slots=True, frozen=True)
class Opened:
    """A decrypted message, its receive id, and the token and key of its encryption."""

    message: bytes = field(repr=False)
    receive_id: str
    token: str = field(repr=False)
    key: bytes = field(repr=False)


class Sealed(NamedTuple):
    """An encrypted message with its signature."""

    encrypted: str
    signature: str
    timestamp: str
    nonce: str


class MessageCrypto:
    """Verifies and decrypts with any of the configured tokens and keys.

    `milliseconds`: timestamps may be in milliseconds. This is off by default: the signed parts are
    joined without separators, so each accepted form of a timestamp is one more way to divide the
    same text differently.
    """

    def __init__(self, options: CryptoOptions, milliseconds: bool = False):
        self._milliseconds = milliseconds
        self._tolerance = options.tolerance
        self._receive_ids = options.receive_id
        self.tokens = [token.get_secret_value() for token in options.secrets]
        self.keys = [b64decode(key.get_secret_value() + "=") for key in options.aes_key]

    def parameters(self, request: Request) -> dict[str, str]:
        """Return the query's parameters, after checks of ``timestamp`` and ``nonce``.

        Raises `Unverified`, and `BadRequest` where there are too many parameters.
        """
        query = read_query(request.query_string)
        if "nonce" not in query:
            raise SignatureMissing("The parameter nonce is missing.")
        timestamp = query.get("timestamp", "")
        if self._milliseconds and len(timestamp) > 11:
            timestamp = timestamp[:-3]
        check_time(timestamp, request.received_at, self._tolerance)
        return query

    def signed(self, given: str, query: dict[str, str], *more: str) -> str:
        """Return the token with which the signature `given` of the query and `more` was made.

        Raises `Unverified`.
        """
        for token in self.tokens:
            expected = signature(token, query["timestamp"], query["nonce"], *more)
            if compare_digest(expected.encode(), given.encode()):
                return token
        raise SignatureMismatch

    def open(self, given: str, query: dict[str, str], encrypted: str) -> Opened:
        """Verify the signature `given`, then decrypt. Raises `Unverified`."""
        token = self.signed(given, query, encrypted)
        for key in self.keys:
            plain = decrypt(encrypted, key)
            if plain is not None and (plain[1] in self._receive_ids or "*" in self._receive_ids):
                return Opened(*plain, token, key)
        raise NotDecrypted

    def seal(self, message: bytes, timestamp: str) -> Sealed:
        """Encrypt and sign as the sender would, with the first receive id, token and key."""
        receive_id = self._receive_ids[0].replace("*", "")
        return seal(Opened(message, receive_id, self.tokens[0], self.keys[0]), timestamp)


def signature(*parts: str) -> str:
    """Return the hex SHA-1 of `parts`, sorted and joined."""
    return sha1("".join(sorted(parts)).encode(errors="surrogatepass")).hexdigest()


def new_nonce() -> str:
    """Return ten random digits."""
    return f"{randbelow(10**10):010}"


def seal(opened: Opened, timestamp: str) -> Sealed:
    """Encrypt and sign a message, so that `MessageCrypto.open` returns it."""
    encrypted, nonce = encrypt(opened.message, opened.receive_id, opened.key), new_nonce()
    proof = signature(opened.token, timestamp, nonce, encrypted)
    return Sealed(encrypted, proof, timestamp, nonce)


def encrypt(message: bytes, receive_id: str, key: bytes, random: bytes | None = None) -> str:
    """Return the base64 cipher text; `random` is 16 bytes (default: new random bytes)."""
    random = token_bytes(16) if random is None else random
    plain = random + len(message).to_bytes(4, "big") + message + receive_id.encode()
    return b64encode(encrypt_cbc(plain, key, key[:16], _BLOCK)).decode()


def decrypt(encrypted: str, key: bytes) -> tuple[bytes, str] | None:
    """Return the message and the receive id; None for any error."""
    try:
        sealed = b64decode(encrypted, validate=True)
        content = unpadded(decrypt_cbc(sealed, key, key[:16]), _BLOCK)
        end = 20 + int.from_bytes(content[16:20])
        return (content[20:end], content[end:].decode()) if end <= len(content) else None
    except ValueError:
        return None


# AES-CBC with the padding of PKCS#7, for Feishu, too ---------------------------------------------


def encrypt_cbc(plain: bytes, key: bytes, iv: bytes, block: int) -> bytes:
    """Pad a text to a multiple of `block` bytes, and encrypt it."""
    padder, encryptor = PKCS7(8 * block).padder(), Cipher(AES(key), CBC(iv)).encryptor()
    return encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize()


def decrypt_cbc(sealed: bytes, key: bytes, iv: bytes) -> bytes:
    """Decrypt a text, which stays padded. Raises ValueError where its length is wrong."""
    decryptor = Cipher(AES(key), CBC(iv)).decryptor()
    return decryptor.update(sealed) + decryptor.finalize()


def unpadded(padded: bytes, most: int) -> bytes:
    """Return a text without its padding, 1 to `most` bytes. Raises ValueError where it is wrong."""
    padding = padded[-1:] * int.from_bytes(padded[-1:])
    content = padded.removesuffix(padding)
    if content == padded or len(padding) > most:
        raise ValueError("the padding is wrong")
    return content

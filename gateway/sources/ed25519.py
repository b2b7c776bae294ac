"""Make and verify Ed25519 signatures (RFC 8032); keys and signatures are raw bytes."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

#: Bytes of a public key, and of the seed of a private key.
KEY_SIZE = 32


def public_key(key: bytes) -> Ed25519PublicKey:
    """Return the public key. Raises ValueError unless it has 32 bytes."""
    return Ed25519PublicKey.from_public_bytes(key)


def verifies(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    """Did the owner of `key` sign `message`?"""
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def sign(seed: bytes, message: bytes) -> bytes:
    """Sign with the private key that is made from `seed`, which has 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)

"""The names of keys in the Redis of the claims."""

from __future__ import annotations

from gateway.delivery import identity_digest


def delivery_key(prefix: str, identity: str) -> bytes:
    """Return the key of the claim on a delivery; what is kept of it elsewhere begins so.

    The braces give all of them the same slot in a cluster. It is short, so that with the usual
    prefix it fits into 32 bytes of Redis' memory.
    """
    return b"%b{%b}" % (prefix.encode(), identity_digest(identity).replace(b"}", b"|"))

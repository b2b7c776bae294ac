"""The names of keys in the Redis of the claims.

A cluster takes keys together only where they have the same slot, so those of one delivery have its
digest as their tag. On one server the names are those that gateways have always shared.
"""

from __future__ import annotations

from gateway.delivery import identity_digest

#: What follows the prefix: of a claim, of a task's failure, and of both in a cluster.
CLAIM, FAILURE, TAGGED = "c:", "failed:", "k:"


def claim_key(prefix: str, identity: str, clustered: bool) -> bytes:
    """Return the key of the claim on a delivery.

    It is short, so that with the usual prefix it fits into 32 bytes of Redis' memory.
    """
    digest = identity_digest(identity)
    if clustered:
        return b"%b%b{%b}" % (prefix.encode(), TAGGED.encode(), digest.replace(b"}", b"|"))
    return prefix.encode() + CLAIM.encode() + digest


def failure_key(prefix: str, claim: bytes, task_id: str) -> bytes:
    """Return the key of the record that the task of a claim, which has the key `claim`, failed."""
    if claim.startswith((prefix + TAGGED).encode()):
        return claim + task_id.encode()
    return f"{prefix}{FAILURE}{task_id}".encode()

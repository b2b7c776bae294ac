"""Bodies in gzip, decompressed to a limit. https://www.rfc-editor.org/rfc/rfc1952"""

from __future__ import annotations

import zlib

from gateway.errors import BadRequest, BodyTooLarge

#: Members of one body, which follow each other: more cost far more time than bytes.
MAX_MEMBERS = 100
# zlib's own way to ask for gzip's header and checksum.
_GZIP = 16 + zlib.MAX_WBITS


def gunzip(body: bytes, limit: int) -> bytes:
    """Return what all members of `body` hold.

    Raises `BodyTooLarge` beyond `limit` bytes, and `BadRequest` where a member is damaged or cut
    off, or something else comes behind it.
    """
    # Not all at once: what is beyond the limit is no more than a piece of it.
    most = max(64 * 1024, limit // 16)
    pieces: list[bytes] = []
    size = 0
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(body, most)
            except zlib.error as exc:
                raise BadRequest("The body is no gzip.") from exc
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"The body is over {limit} bytes when decompressed.")
            body = member.unconsumed_tail
            if not (piece or body or member.eof):
                raise BadRequest("The body's gzip is cut off.")
            pieces.append(piece)
        body = member.unused_data
        if not body:
            return b"".join(pieces)
    raise BadRequest(f"The body has more than {MAX_MEMBERS} gzip members.")

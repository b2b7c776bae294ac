"""Decompress gzip bodies, up to a limit. https://www.rfc-editor.org/rfc/rfc1952"""

from __future__ import annotations

import zlib

from gateway.errors import BadRequest, BodyTooLarge

#: The most gzip members that a body may have: many small ones cost much time for few bytes.
MAX_MEMBERS = 100
# With 16 added, zlib expects gzip's header and checksum.
_GZIP = 16 + zlib.MAX_WBITS


def gunzip(body: bytes, limit: int) -> bytes:
    """Return the decompressed content of all members of `body`.

    Raises `BodyTooLarge` beyond `limit` bytes, and `BadRequest` where a member is damaged or cut
    off, or is followed by other data.
    """
    # In pieces, so that at most one piece beyond the limit is decompressed.
    most = max(64 * 1024, limit // 16)
    pieces: list[bytes] = []
    size = 0
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(body, most)
            except zlib.error as exc:
                raise BadRequest("The body is not valid gzip.") from exc
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"The body is over {limit} bytes when decompressed.")
            body = member.unconsumed_tail
            if not (piece or body or member.eof):
                raise BadRequest("The gzip body is cut off.")
            pieces.append(piece)
        body = member.unused_data
        if not body:
            return b"".join(pieces)
    raise BadRequest(f"The body has more than {MAX_MEMBERS} gzip members.")

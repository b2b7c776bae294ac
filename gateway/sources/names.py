"""Compile what a delivery is called: its event, and what identifies it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.sources.fields import identity, name
from gateway.sources.places import IN_BODY, Place, Seen
from gateway.sources.readers import Readers
from gateway.sources.signatures import digest


def events(readers: Readers) -> Callable[[Seen], str]:
    """Return a function that reads the event, or the events of a batch joined by commas."""
    block = readers.block
    ones = [readers.first([text]) for text in block.event]
    more = readers.first(block.subevent) if block.subevent else None
    several = any("*" in text for text in (*block.event, *block.subevent))

    if len(ones) == 1 and not more and not block.names:
        (read,) = ones
        return lambda seen: name(read(seen))

    def event(seen: Seen) -> str:
        for one in ones:
            if found := name(one(seen)):
                break
        else:
            return ""
        second = name(more(seen)) if more else ""
        if several and ("," in found or "," in second):
            names = [block.names.get(each, each) for each in found.split(",")]
            subs = [f".{each}" if each else "" for each in second.split(",")]
            return ",".join([each + sub for each in names for sub in subs])
        found = block.names.get(found, found)
        return f"{found}.{second}" if second else found

    return event


def identities(readers: Readers) -> Callable[[Seen], str]:
    """Return a function that reads what identifies a delivery; empty: it has nothing."""
    block = readers.block
    texts, others = block.identity or block.id, [*block.apart]
    if "digest" in texts:  # the same body may be sent to another URL
        others += [[text] for text in block.signed_places if text.startswith("url")]
    used = [place for each in others for text in each for place in block.places(text)]
    of_event = map(Place.parse, (*block.event, *block.subevent))
    if texts == ["digest"] and {p.kind for p in (*used, *of_event)} <= {*IN_BODY, "event"}:
        return lambda seen: digest(seen.body)
    in_body = [place for place in used if place.kind in IN_BODY]
    has_digest = any(p.kind == "digest" or "sha256hex" in p.filters for p in in_body)
    # Else a copy of one delivery with the id of another could get the answer of that one.
    if not has_digest and not (block.covers_body and all(map(block.is_signed, texts))):
        others.append(["digest"])
    keys, apart = [readers.first([text]) for text in texts], [*map(readers.first, others)]

    def of(seen: Seen) -> str:
        for read in keys:
            key = read(seen)
            found = identity(key, *[each(seen) for each in apart]) if key or key == 0 else ""
            if found:
                return found
        return ""

    return of

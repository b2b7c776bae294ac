"""Tasks that leave their answer to others."""

from __future__ import annotations

from celery import chord, group

from appserver import app


@app.task(name="replacing.part")
def part(text: str) -> str:
    """Return the text."""
    return text


@app.task(name="replacing.joined")
def joined(parts: list[str]) -> str:
    """Return all parts as one text."""
    return "".join(parts)


@app.task(name="replacing.by_task", bind=True)
def by_task(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by one task."""
    return self.replace(part.si(body))


@app.task(name="replacing.by_chain", bind=True)
def by_chain(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by two tasks, one after the other."""
    return self.replace(part.si("lost") | part.si(body))


@app.task(name="replacing.by_group", bind=True)
def by_group(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by two tasks at once."""
    return self.replace(group(part.si(body), part.si(body)))


@app.task(name="replacing.by_chord", bind=True)
def by_chord(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by two tasks at once, and one that joins their results."""
    return self.replace(chord([part.si(body), part.si(body)], joined.s()))


@app.task(name="replacing.by_failing_group", bind=True)
def by_failing_group(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by two tasks at once, of which one fails."""
    return self.replace(group(part.si(body), odd.si({}, {}, body)))


@app.task(name="replacing.by_failing_chord", bind=True)
def by_failing_chord(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by a task, and then two at once, of which one fails, before two others."""
    parts = group(part.si(body), odd.si({}, {}, body))
    return self.replace(part.si(body) | parts | part.si(body) | part.si(body))


@app.task(name="replacing.odd")
def odd(query: dict, headers: dict, body: str) -> object:
    """Return what no JSON has."""
    return object()

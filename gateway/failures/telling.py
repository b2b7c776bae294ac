"""Tell of failures: a message in which all is that has come since the last one.

What is to be told is kept in the journal's store until a message with it was sent. It is sent by
the process that counts, so once, but twice where that is killed between the two.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway import background
from gateway.clock import time
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.failures.senders import Message, Sender
from gateway.journal.groups import MUTED, RESOLVED, Group
from gateway.journal.store import MINUTES, JournalStore
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

FAILED = "gateway_notifications_failed_total"
_LATEST = 86_400.0  # seconds for which something is to be told
_MOST = 500  # news of one message
_TRIES = (1.0, 4.0)  # seconds after which a message is sent again
_WORDS = {"new": "new", "again": "again, after it was resolved", "grown": "ten times as many"}


@dataclass(frozen=True, slots=True)
class News:
    """What is told: a ``kind`` of news, and its group, or a route with its numbers."""

    kind: str
    group: Group | None = None
    route: str = ""
    answered: int = 0
    failed: int = 0

    def __str__(self) -> str:
        if self.group is None:
            share = min(self.failed / max(self.answered, 1), 1.0)
            numbers = f"{self.failed} of {self.answered} in {MINUTES} minutes"
            return f"{self.route}: {share:.0%} of its deliveries fail ({numbers})"
        about, count = self.group.about, self.group.count
        what = ": ".join(filter(None, (about.type, about.text))) or about.state
        since = datetime.fromtimestamp(self.group.first / 1000, UTC)
        return (
            f"{_WORDS[self.kind]}: {what} ({about.route}, {about.task}; {count} {about.state} "
            f"since {since:%Y-%m-%d %H:%M}Z; group {self.group.id})"
        )

    def as_object(self) -> dict[str, Any]:
        """Return what a program reads of it."""
        if self.group is None:
            numbers = {"answered": self.answered, "failed": self.failed, "minutes": MINUTES}
            return {"kind": self.kind, "route": self.route, **numbers}
        return {"kind": self.kind, "group": self.group.as_object()}


class Notifier:
    """Sends what the journal's `store` has as news, at most one message each `Notify.every`."""

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics):
        assert config.notify is not None  # or there is no notifier
        self._every = config.notify.every
        self._sender = Sender(config.notify)
        self._store, self._metrics = store, metrics
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        await background.stop(self._task)
        self._sender.close()

    def tell(self) -> None:
        """Begin to tell what there is, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell(), name="failures are told")

    async def _tell(self) -> None:
        try:
            names = await self._store.news(_MOST, _LATEST)
            if not names:
                return
            news = await self._news(names)
            if not news:  # it is muted or resolved by now
                await self._store.told(names, 0.0)
                return
            problem = ""
            try:
                await self._send(message(news))
            except GatewayError as exc:
                self._metrics.add(FAILED)
                log.warning("a message about failures cannot be sent: %s", exc)
                names, problem = [], str(exc) or "the reason is not known"
            await self._store.told(names, self._every, problem)
        except GatewayError as exc:  # of the store, whose errors are logged by what counts
            log.debug("failures cannot be told: %s", exc)

    async def _news(self, names: Sequence[str]) -> list[News]:
        groups = {each.id: each for each in await self._store.groups()}
        rates = await self._store.rates(None, {}, {})
        found = []
        for kind, _, name in (each.partition(" ") for each in names):
            if kind == "share":
                answered, failed = rates.get(name, (0, 0))
                found.append(News(kind, None, name, answered, failed))
            elif name in groups and groups[name].state not in (MUTED, RESOLVED):
                found.append(News(kind, groups[name]))
        return found

    async def _send(self, what: Message) -> None:
        for pause in _TRIES:
            try:
                return await self._sender.send(what)
            except GatewayError as exc:
                log.debug("a message about failures is sent again: %s", exc)
                await asyncio.sleep(pause)
        await self._sender.send(what)


def message(news: Sequence[News]) -> Message:
    """Return the message with these `news`; without any it is a test."""
    title = f"celery-gateway on {socket.gethostname()}: "
    title += f"{len(news)} news of failures" if news else "this is a test"
    about = {"host": socket.gethostname(), "news": [each.as_object() for each in news]}
    sent = datetime.fromtimestamp(time(), UTC).isoformat(timespec="milliseconds")
    kind = "gateway.failures" if news else "gateway.test"
    body = json.dumps({"type": kind, "timestamp": sent, "data": about})
    return Message(secrets.token_hex(16), title, [str(each) for each in news], body)


async def send_test(config: Config) -> None:
    """Send a test to whom `[notify]` names, once; raises `GatewayError`."""
    if config.notify is None:
        raise GatewayError("there is no [notify] in this configuration")
    sender = Sender(config.notify)
    try:
        await sender.send(message([]))
    finally:
        sender.close()

"""The page of servers: brokers, Redis and the archive, as they answer."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

from gateway.admin.pages.counted import Counted
from gateway.admin.pages.routes import settings
from gateway.admin.pages.view import View
from gateway.config.settings import Config
from gateway.errors import GatewayError, StoreError
from gateway.stores.result_store import no_answer, without_password
from gateway.stores.server import numbers, product
from gateway.stores.state_store import StateStore

_NEAR = 0.85  # the share of a limit from which on it is told


class Servers(View):
    """Shows a panel for each server."""

    path, template = "servers", "servers.html"

    async def content(self, *path: str) -> dict[str, Any]:
        look, redis, archive = await asyncio.gather(
            self.shared.asked.look(), _redis(self.config), asyncio.to_thread(_archive, self.config)
        )
        counted = Counted(self.supervisor)
        names = ("journal_deliveries", "journal_open", "journal_bytes", "state_keys",
                 "archive_waiting", "archive_lag_seconds", "archive_room_used",
                 "archive_missed")  # fmt: skip
        gauges = {name: counted.gauge(f"gateway_{name}") for name in names}
        waiting = sum(many for many, _ in look.queues.values()) if look.queues else None
        return {
            "archive": archive, "gauges": gauges, "look": look, "near": _NEAR, "redis": redis,
            "settings": sorted(settings(self.config, {"routes", "sources"}), key=itemgetter(2)),
            "waiting": waiting,
        }  # fmt: skip


async def _redis(config: Config) -> dict[str, Any]:
    """Return what the Redis of claims and journal tells; ``problem`` says why it does not."""
    if not config.state:
        return {}
    found: dict[str, Any] = {"url": without_password(config.state), "problem": ""}
    try:
        async with StateStore.opened(config) as store:
            answer = await store.run("INFO")
    except StoreError as exc:
        return {**found, "problem": str(no_answer(config, config.state, exc))}
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    info = {name: value for name, _, value in pairs}
    values, fields = numbers(answer), {
        "used": "used_memory", "most": "maxmemory", "evicted": "evicted_keys",
        "replicas": "connected_slaves",
    }  # fmt: skip
    found |= {name: values.get(field, 0) for name, field in fields.items()}
    policy, role = info.get("maxmemory_policy", ""), info.get("role", "")
    return {**found, "about": product(info), "policy": policy, "role": role}


def _archive(config: Config) -> dict[str, Any]:
    """Return what the archive's database tells."""
    if not config.archive:
        return {}
    import sqlalchemy as sa

    from gateway.archive import tables
    from gateway.archive.database import Database

    database = Database(config)
    columns = tables.DELIVERIES.c
    try:
        with database.reading() as connection:
            oldest = connection.execute(sa.select(sa.func.min(columns.ms))).scalar()
            newest = connection.execute(sa.select(sa.func.max(columns.ms))).scalar()
            version = ".".join(map(str, connection.dialect.server_version_info or ()))
            name = connection.dialect.name
    except GatewayError as exc:
        return {"url": database.shown, "problem": str(exc)}
    about = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}.get(name, name)
    return {
        "url": database.shown, "problem": "", "about": f"{about} {version}",
        "oldest": oldest and oldest / 1000, "newest": newest and newest / 1000,
    }  # fmt: skip

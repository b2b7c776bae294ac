"""The stores of the journal, by name."""

from __future__ import annotations

from gateway.config.settings import Config
from gateway.journal.base import JournalStore
from gateway.journal.redis_store import RedisStore

#: tests/contract/test_journal_store.py tests each of them.
STORES: dict[str, type[JournalStore]] = {"redis": RedisStore}


def store_for(_config: Config) -> type[JournalStore]:
    """Return the store that has the journal."""
    return STORES["redis"]

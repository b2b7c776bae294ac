"""The Redis where Celery's workers store results: its keys, and how they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from kombu.utils.url import maybe_sanitize_url

from gateway.celery_message import MAX_STORED, RESULT_KEY
from gateway.config.settings import Config
from gateway.errors import GatewayError, StoreError, Unanswered
from gateway.stores.server import Address

if TYPE_CHECKING:
    from gateway.stores.redis_client import Client

Ask = Callable[..., Awaitable[Any]]

#: Results that are looked for together, and bytes of those that are read together: more could be
#: more than arrives in time, or than there is room for. The first one is read in any case.
TOGETHER, _BYTES = 500, 8 * 1024 * 1024

# Returns values from the first key on, as many as fit. Instead of one that is too large it returns
# its size. KEYS: of results. Arguments: bytes of a value, bytes of all
READ = """
local found, left = {}, tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
    local size = redis.pcall('STRLEN', key)
    if type(size) == 'table' then
        if not string.find(size.err, 'WRONGTYPE', 1, true) then
            return size
        end
        found[i] = false -- it is no text, so no worker has stored it
    elseif size > tonumber(ARGV[1]) then
        found[i] = size
    else
        left = left - size
        if left < 0 and i > 1 then
            break
        end
        found[i] = redis.call('GET', key)
    end
end
return found
"""


def connect(
    config: Config, url: str = "", *, state: bool = False, node: Address | None = None
) -> Client:
    """Make a client for the Redis at `url` (default: the result store); it connects when used.

    It does not retry, and commands have no timeout: the caller sets a deadline. A replica is
    refused, and so is a node of a cluster, which only the Redis of the claims may be (`state`):
    this or another `node` of it.
    """
    from gateway.stores import redis_client

    clusters = state and config.state_url is not None
    return redis_client.connect(config, url or config.results, clusters=clusters, node=node)


def key_prefix(config: Config) -> str:
    """Return the part of a result's key before the task id, as Celery writes it."""
    prefix = config.result_key_prefix
    if prefix and prefix[-1] not in ":_-.":
        prefix += "_"
    return prefix + RESULT_KEY


async def stored(
    run: Ask, prefix: str, task_ids: Sequence[str]
) -> AsyncIterator[tuple[str, bytes | int]]:
    """Yield those of the tasks that have a result, with what `decode_result` takes.

    `run` sends a command and returns an awaitable of the reply; it fails as that does.
    """
    while task_ids:
        found = await run(*reading([prefix + each for each in task_ids[:TOGETHER]]))
        for task_id, payload in zip(task_ids, found, strict=False):
            if payload is not None:
                yield task_id, payload
        task_ids = task_ids[len(found) :]


def reading(keys: Sequence[str | bytes]) -> tuple[str | bytes | int, ...]:
    """Return the command that reads results: its reply has those of the first of `keys` that fit.

    A result that is too large to be read is its size there, and a missing one None.
    """
    return ("EVAL", READ, len(keys), *keys, MAX_STORED, _BYTES)


def without_password(url: str) -> str:
    """Return a store's URL without its password, so that it can be shown."""
    return ";".join(map(maybe_sanitize_url, url.split(";")))


def no_answer(config: Config, url: str, exc: Exception) -> GatewayError:
    """Make the error of a command to the Redis at `url`, with the remedy."""
    away = isinstance(exc, Unanswered)
    name = "state_url" if config.state_url and url == config.state else "result_backend"
    remedy = f"; start it, or correct {name} (GATEWAY_{name.upper()})" if away else ""
    return GatewayError(f"{without_password(url)}: {str(exc).rstrip('.')}{remedy}")


def remedied(config: Config, url: str, run: Ask) -> Ask:
    """Return `run` with errors for people, who read what to do: it raises `GatewayError`."""

    async def ask(*command: str | bytes | int) -> Any:
        try:
            return await run(*command)
        except StoreError as exc:
            raise no_answer(config, url, exc) from exc

    return ask

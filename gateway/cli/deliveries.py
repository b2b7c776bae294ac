"""List, show and replay what was received, where `journal` is set."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gateway.celery_message import TaskIds
from gateway.cli.serve import configure
from gateway.config.settings import Config
from gateway.errors import ConfigError, GatewayError, NotConfirmed, RequestError
from gateway.journal.replay import outcomes, publishing
from gateway.journal.store import GONE, Entry, entries
from gateway.outcome import SUCCESS, Outcome

_LINE = "{:<24} {:<36} {:>6} {:>9}  {} {}"

Work = Callable[[argparse.Namespace, Config], Coroutine[None, None, int]]


def options(parser: argparse.ArgumentParser) -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")
    common.add_argument("--strategy", help="as for serve")
    common.add_argument("--broker", metavar="URL", dest="broker_url", help="as for serve")
    common.add_argument("--result-backend", metavar="URL", help="as for serve")
    commands = parser.add_subparsers(metavar="list|show|replay", required=True)

    listing = commands.add_parser("list", parents=[common], help="the newest first")
    listing.add_argument("--route", metavar="PATH", help="only of this route")
    listing.add_argument("--status", metavar="502|5??", default="*", help="only with this status")
    listing.add_argument("--limit", metavar="N", type=int, default=20, help="at most so many (20)")
    listing.add_argument("--json", action="store_true", help="an object a line")
    listing.set_defaults(work=_list)

    show = commands.add_parser("show", parents=[common], help="all that is known of one")
    show.add_argument("ids", metavar="ID", nargs=1, help="a delivery's id")
    show.set_defaults(work=_show)

    replay = commands.add_parser("replay", parents=[common], help="run them again, as other tasks")
    replay.add_argument("ids", metavar="ID", nargs="+", help="deliveries' ids")
    replay.add_argument(
        "--wait", metavar="SECONDS", type=float, default=10.0, help="for the results (10)"
    )
    replay.set_defaults(work=_replay)


def run(arguments: argparse.Namespace) -> int:
    config = configure(arguments)
    if not config.state:
        raise ConfigError(["result_backend: the journal is kept in Redis; set it, or state_url"])
    work: Work = arguments.work
    return asyncio.run(work(arguments, config))


async def _list(arguments: argparse.Namespace, config: Config) -> int:
    number = 0
    async with aclosing(entries(config)) as every:
        async for entry in every:
            if number == arguments.limit:
                break
            if arguments.route not in (None, entry.delivery["route"]):
                continue
            if not fnmatchcase(_status(entry), arguments.status):
                continue
            if not number and not arguments.json:
                print(_LINE.format("received", "delivery", "status", "ms", "route", "event"))
            number += 1
            print(_json(_about(entry)) if arguments.json else _line(entry))
    if not number and arguments.limit:
        print(
            "gateway: no such deliveries; the setting `journal` is the number that is kept",
            file=sys.stderr,
        )
    return 0


async def _show(arguments: argparse.Namespace, config: Config) -> int:
    (entry,) = await _find(config, arguments.ids)
    args, kwargs = entry.arguments()
    match args:
        case [dict(), dict(), body] if not kwargs:  # what a route without `args` and `kwargs` gives
            call = {"query": args[0], "headers": args[1], "body": body}
        case _:
            call = {"args": args, "kwargs": kwargs}
    shown = {**_about(entry), **call, "task_state": None}
    async for _, outcome in outcomes(config, [entry.task_id]):
        shown["task_state"] = _outcome_text(outcome)
    print(_json(shown, indent=2, ensure_ascii=False))
    return 0


async def _replay(arguments: argparse.Namespace, config: Config) -> int:
    chosen = await _find(config, arguments.ids)
    ids, taken, well = TaskIds(), {}, True
    async with publishing(config) as publish:
        for entry in chosen:
            if not entry.sendable:
                print(f"{entry.id} cannot be replayed, as it had no message: {_shown(entry.error)}")
                well = False
                continue
            task_id = ids.new()
            try:
                await publish(entry, task_id)
            except NotConfirmed:
                print(f"{entry.id} not confirmed, but may run: task {task_id}")
                well = False
            except RequestError as exc:
                print(f"{entry.id} not taken: {exc}")
                well = False
            else:
                print(f"{entry.id} taken: task {task_id}")
                taken[task_id] = entry.id
    async for task_id, outcome in outcomes(config, list(taken), arguments.wait):
        print(f"{taken.pop(task_id)} {_outcome_text(outcome)}")
        well = well and outcome.state == SUCCESS
    for entry_id in taken.values():
        print(f"{entry_id} no result" + (f" in {arguments.wait:g} s" if config.results else ""))
    return 0 if well and not taken else 1


async def _find(config: Config, ids: list[str]) -> list[Entry]:
    """Return the deliveries with these `ids`, in their order.

    Raises `GatewayError` where one is missing.
    """
    found: dict[str, Entry] = {}
    async with aclosing(entries(config)) as every:
        async for entry in every:
            if entry.id in ids:
                found[entry.id] = entry
                if len(found) == len(set(ids)):
                    break
    missing = [each for each in ids if each not in found]
    if missing:
        raise GatewayError(f"no such delivery in the journal: {', '.join(missing)}")
    return [found[each] for each in dict.fromkeys(ids)]


def _line(entry: Entry) -> str:
    delivery = entry.delivery
    received = datetime.fromisoformat(delivery["received_at"])
    at = received.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    milliseconds = f"{entry.seconds * 1e3:,.1f}"
    route, event = delivery["route"], delivery["event"]
    return _shown(_LINE.format(at, entry.id, _status(entry), milliseconds, route, event).rstrip())


def _about(entry: Entry) -> dict[str, Any]:
    return {
        **entry.delivery,
        "task": entry.task,
        "task_id": entry.task_id,
        "queue": entry.queue,
        "status": entry.status or None,
        "seconds": entry.seconds,
        "error": entry.error,
    }


def _status(entry: Entry) -> str:
    return "gone" if entry.status == GONE else str(entry.status)


def _outcome_text(outcome: Outcome) -> str:
    return _shown(f"{outcome.state}: {outcome.error}") if outcome.error else outcome.state


def _shown(text: str) -> str:
    """Return `text` with escapes for characters that a terminal would interpret."""
    return "".join(map(_escaped, text))


def _json(value: dict[str, Any], **options: Any) -> str:
    """Return JSON in which characters that a terminal would interpret are escaped."""
    return "\n".join(map(_shown, json.dumps(value, **options).split("\n")))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))

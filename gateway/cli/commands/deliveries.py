"""List, show, watch, replay and erase what was received, and failures in groups, with `journal`."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from gateway import audit, log
from gateway.archive.erasing import LEFT, Erased, erase
from gateway.archive.reading import reading
from gateway.backoff import Backoff
from gateway.cli import add_settings, configuration, shown, tell
from gateway.config.pointers import glob
from gateway.config.settings import Config
from gateway.errors import ConfigError, GatewayError
from gateway.journal.entry import DONE, OPEN, Entry
from gateway.journal.filter import PARTS, Filter, read_group, read_until, status
from gateway.journal.groups import Group
from gateway.journal.replay import choose, outcomes, refusals, replaying
from gateway.journal.store import POSITION, JournalStore
from gateway.outcome import SUCCESS, Outcome

#: Where `journal` is 0.
_NOTHING = "this configuration keeps none: set journal = 10000, say, and restart the gateway"
_LINE = "{:<24} {:<36} {:<13} {:>6} {:>9}  {}"
_ERROR = 80  # characters of an error that are shown
#: What is known of a delivery beside what its message has.
_FIELDS = (
    "state", "task", "task_id", "queue", "status", "seconds", "published", "error", "attempts",
    "ended_at", "replays", "replaying", "identity", "request", "redacted", "begun_at", "late_at",
    "runs",
)  # fmt: skip
_GROUP = "{:<20} {:<16} {:<8} {:>9}  {}"
_GROUPS = _GROUP.format("last", "group", "state", "count", "route, task, error")
_HEAD = _LINE.format("received", "delivery", "state", "status", "ms", "route, event, error")

Work = Callable[[argparse.Namespace, Config], Coroutine[None, None, int]]


def options(parser: argparse.ArgumentParser) -> None:
    common = argparse.ArgumentParser(add_help=False)
    add_settings(common, *configuration.OPTIONS)
    wanted = argparse.ArgumentParser(add_help=False)
    for name, part in PARTS.items():
        default = getattr(Filter(), name)
        about = {"metavar": part.metavar, "default": default, "help": part.help}
        wanted.add_argument(f"--{name}", type=_argument(part.read), **about)
    group = argparse.ArgumentParser(add_help=False)
    group.add_argument("group", metavar="GROUP", type=_argument(read_group), help="a group's id")
    parents = {"wanted": [common, wanted], "group": [common, group], "": [common]}
    names = "list|show|watch|replay|groups|mute|resolve|erase"
    commands = parser.add_subparsers(metavar=names, required=True)

    def command(name: str, work: Work, summary: str, kind: str = "", **more: Any) -> Any:
        """Add a command, and return the function that adds an argument to it."""
        added = commands.add_parser(name, parents=parents[kind], help=summary)
        added.set_defaults(work=work, parser=added, **more)
        return added.add_argument

    lines = {"action": "store_true", "help": "one JSON object a line"}
    add = command("list", _list, "list deliveries, the newest first", "wanted")
    add("--limit", metavar="N", type=_number, default=20, help="the most deliveries (20)")
    text = "only older ones: continue at the position that the page before has printed"
    add("--before", metavar="POSITION", default="", type=_position, help=text)
    add("--json", **lines)
    add = command("show", _show, "print all that is known of a delivery")
    add("id", metavar="ID", help="a delivery's id")
    add("--json", action="store_true", help="in one line")
    command("watch", _watch, "print each delivery when it changes", "wanted")("--json", **lines)
    add = command("replay", _replay, "run deliveries again, as new tasks", "wanted")
    add("ids", metavar="ID", nargs="*", help="ids of deliveries; without any, a filter is needed")
    add("--dry-run", action="store_true", help="list what would be replayed")
    add("--yes", action="store_true", help="do not ask before a filter's replay")
    text = "also deliveries whose task an interrupted replay, or another try, may have run"
    add("--again", action="store_true", help=text)
    add("--rate", metavar="N", type=_rate, help="the most deliveries a second")
    text = "how long to wait for the results (10)"
    add("--wait", metavar="SECONDS", type=_seconds, default=10.0, help=text)
    add("--json", **lines)
    command("groups", _groups, "list failures in groups, the last one first")("--json", **lines)
    add = command("mute", _change_group, "tell nothing of a group for a while", "group")
    text = "2026-01-31T12:00Z, or 15m, 2h, 7d from now; 0s: no longer"
    add("--until", metavar="TIME", type=_argument(read_until), required=True, help=text)
    command("resolve", _change_group, "mark a group as resolved", "group", until=None)
    add = command("erase", _erase, "remove a person from all that is kept")
    text = "a text that only this person's deliveries have, as an e-mail address"
    add("--text", metavar="TEXT", required=True, help=text)
    add("--dry-run", action="store_true", help="only say what would be removed")
    add("--yes", action="store_true", help="do not ask before")


def run(arguments: argparse.Namespace) -> int:
    config = configuration.configure(arguments)
    if not config.state and not (config.archive and arguments.work in (_list, _show)):
        raise ConfigError(["result_backend: the journal is kept in Redis; set it, or state_url"])
    work: Work = arguments.work
    with _audited(config):
        return asyncio.run(work(arguments, config))


@contextmanager
def _audited(config: Config) -> Iterator[None]:
    """Write audit lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log.formatter(config.log_format))
    audit.log.addHandler(handler)
    audit.log.setLevel(logging.INFO)
    try:
        yield
    finally:
        audit.log.removeHandler(handler)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # it has no name, as in a container; OSError from 3.13 on
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function for argparse, which tells the texts of no other error."""

    def argument(text: str) -> Any:
        try:
            return read(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from None

    return argument


def _checked(kind: type, fits: Callable[[Any], object], what: str) -> Callable[[str], Any]:
    """Return a function for argparse, which reads what `fits`."""

    def argument(text: str) -> Any:
        with suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text}: is not {what}")

    return argument


_position = _checked(str, re.compile(POSITION).fullmatch, "what a page before has printed")
_number = _checked(int, lambda number: number > 0, "a number above 0")
_rate = _checked(float, lambda rate: 0 < rate < 1e6, "a number above 0")
_seconds = _checked(float, lambda time: 0 <= time < 1e6, "a number of seconds from 0 on")


def _filter(arguments: argparse.Namespace) -> Filter:
    return Filter(**{name: getattr(arguments, name) for name in PARTS})


async def _list(arguments: argparse.Namespace, config: Config) -> int:
    number, position, wanted = 0, "", _filter(arguments)
    async with (
        reading(config) as reader,
        aclosing(reader.find(wanted, before=arguments.before)) as found,
    ):
        async for entry in found:
            if number == arguments.limit:
                tell(f"there are more: see --limit, or --before {position}")
                break
            position = entry.position
            if not number and not arguments.json:
                print(_HEAD)
            number += 1
            print(delivery_line(entry, arguments.json))
        for problem in reader.problems:
            tell(problem)
    if not number:
        tell(f"no such deliveries{_why_none(config, wanted)}")
    return 0


def _why_none(config: Config, wanted: Filter) -> str:
    if not config.journal:
        return f", and {_NOTHING}"
    paths = [route.path for route in config.routes]
    if wanted.route and not any(map(glob(wanted.route), paths)):
        return f"; a route is named as in the configuration: {', '.join(paths[:5])}"
    return ""


async def _show(arguments: argparse.Namespace, config: Config) -> int:
    async with reading(config) as reader:
        (entry,) = await reader.get_all([arguments.id])
        for problem in reader.problems:
            tell(problem)
    audit.note(audit.LOOK, _who(), id=entry.id)
    args, kwargs = entry.arguments() if entry.call else (None, None)
    request = entry.original()
    call = request._asdict() if request else {"args": args, "kwargs": kwargs}
    facts = {**_values_of(entry), **call, "task_state": None}
    try:
        async for _, outcome in outcomes(config, [entry.task_id]):
            facts["task_state"] = _outcome_text(outcome)
    except GatewayError as exc:
        if not config.archive:
            raise
        tell(str(exc))
    form = {} if arguments.json else {"indent": 2}
    print(_as_json(facts, ensure_ascii=False, **form))
    return 0


async def _watch(arguments: argparse.Namespace, config: Config) -> int:
    """Print what changes, also after Redis was away; what changed meanwhile is not printed."""
    wanted, backoff, begun = _filter(arguments), Backoff(), False
    while True:
        try:
            async with JournalStore.opened(config) as store, aclosing(store.changes()) as changed:
                async for delivery_id in changed:
                    if delivery_id:
                        entry = await store.get(delivery_id)
                        if entry is not None and wanted.takes(entry):
                            print(delivery_line(entry, arguments.json), flush=True)
                        continue
                    backoff.reset()
                    if begun:
                        tell("connected again")
                        continue
                    begun = True
                    if not config.journal:
                        tell(_NOTHING)
                    if not arguments.json:
                        print(_HEAD, flush=True)
        except GatewayError as exc:
            if not begun:
                raise
            tell(f"{exc}; trying again")
            await asyncio.sleep(backoff.next())


async def _replay(arguments: argparse.Namespace, config: Config) -> int:
    """Replay the deliveries with some ids, or those that a filter takes."""
    wanted = _filter(arguments)
    if bool(arguments.ids) == (wanted != Filter()):
        raise GatewayError("name the deliveries to replay, or say by options which: --state failed")
    async with JournalStore.opened(config) as store:
        left, others = await choose(store, arguments.ids or wanted, arguments.again)
        named = bool(arguments.ids)
        for entry, other in others:
            text = "{} left out: {} is another try of the same delivery, {}; see --again"
            print(text.format(entry.id, other.id, other.state), file=sys.stderr)
        if twice := _twice(left):
            print(twice, file=sys.stderr)
        if arguments.dry_run:
            refused = await refusals(config, store, left)
            for delivery_id, why in refused.items():
                print(shown(f"{delivery_id} {why}"), file=sys.stderr)
            if not arguments.json:
                print(_HEAD)
            left = [entry for entry in left if entry.id not in refused]
            for entry in left:
                print(delivery_line(entry, arguments.json))
            print(f"{len(left)} would be replayed", file=sys.stderr)
            return 0
        code = 1 if named and others else 0
        if not left:
            tell("nothing to replay")
            return code
        would = f"{len(left)} deliver{'y' if len(left) == 1 else 'ies'} would be replayed"
        if not named and not arguments.yes and not _agreed("Replay", would):
            tell("nothing was replayed")
            return 1
        filters = {k: getattr(arguments, k) for k in PARTS if getattr(arguments, k)}
        audit.note(audit.REPLAY, _who(), ids=arguments.ids or None, **filters)
        return await _publish(config, left, arguments) or code


async def _groups(arguments: argparse.Namespace, config: Config) -> int:
    async with JournalStore.opened(config) as store:
        groups = await store.groups()
    if not groups:
        tell("nothing has failed")
    elif not arguments.json:
        print(_GROUPS)
    for group in groups:
        print(_group_line(group, arguments.json))
    return 0


async def _change_group(arguments: argparse.Namespace, config: Config) -> int:
    """Mute a group, or say that it is resolved."""
    until: datetime | None = arguments.until
    group = {"id": arguments.group, "until": until and f"{until:%Y-%m-%dT%H:%M:%SZ}"}
    audit.note(audit.MUTE if until else audit.RESOLVE, _who(), **group)
    async with JournalStore.opened(config) as store:
        if not await store.change_group(arguments.group, until):
            raise GatewayError(f"{arguments.group}: there is no such group of failures")
    print(f"{arguments.group} is {f'muted until {until:%Y-%m-%d %H:%M}Z' if until else 'resolved'}")
    return 0


async def _erase(arguments: argparse.Namespace, config: Config) -> int:
    """Remove the deliveries that have a text, and the answers that do; say what is left."""
    text = arguments.text
    if not text.strip():
        raise GatewayError("--text: is empty; give a text that only this person's deliveries have")
    found = await erase(config, text, dry_run=True)
    would = _erased("would be removed" if any(found) else "nothing has the text", found)
    if arguments.dry_run or not any(found):
        print(would)
        return 0
    if not arguments.yes and not _agreed("Erase", would):
        tell("nothing was removed")
        return 1
    audit.note(audit.ERASURE, _who(), digest=audit.digest(text))
    print(_erased("removed", await erase(config, text)))
    print("What may be left, and where:")
    for line in LEFT:
        print(f"- {line.format(expires=config.result_expires)}")
    return 0


def _erased(what: str, found: Erased) -> str:
    return (
        f"{what}: {found.journal} deliveries of the journal, {found.archive} of the archive, "
        f"{found.answers} kept answers, {found.late} late answers, {found.groups} groups"
    )


def _twice(chosen: Sequence[Entry]) -> str:
    """Say how many of those have not failed; empty: none."""
    states = [entry.state for entry in chosen]
    succeeded = sum(state in DONE for state in states)
    unfinished = sum(state in OPEN for state in states)
    counts = [
        f"{number} {what}"
        for number, what in ((succeeded, "succeeded"), (unfinished, "may still run"))
        if number
    ]
    return f"of {len(states)} to replay, {' and '.join(counts)}" if counts else ""


def _agreed(do: str, would: str) -> bool:
    """Ask whether to `do` what `would` describes; without a terminal that takes --yes."""
    if not sys.stdin.isatty():
        raise GatewayError(f"{would}: say --yes, or see --dry-run")
    return input(f"{would}. {do}? [y/N] ").strip().lower() in ("y", "yes")


async def _publish(config: Config, chosen: Sequence[Entry], arguments: argparse.Namespace) -> int:
    taken: dict[str, str] = {}
    well = True

    def say(delivery_id: str, text: str, **about: str | None) -> None:
        facts = {"id": delivery_id, **about}
        line = _as_json(facts) if arguments.json else shown(f"{delivery_id} {text}")
        print(line, flush=True)

    async with replaying(config) as replayer:
        async for begun in replayer.run_all(chosen, arguments.again, arguments.rate):
            delivery_id, task_id, problem = begun.delivery_id, begun.task_id, begun.problem
            if problem:
                text = f"{problem}: task {task_id}" if task_id else problem
                say(delivery_id, text, task_id=task_id, problem=problem)
                well = False
            else:
                say(delivery_id, f"taken: task {task_id}", task_id=task_id)
                taken[task_id] = delivery_id
        async with aclosing(outcomes(config, list(taken), arguments.wait)) as ended:
            async for task_id, outcome in ended:
                delivery_id, state = taken.pop(task_id), outcome.state
                await replayer.settle(delivery_id, task_id, outcome)
                text = _outcome_text(outcome)
                say(delivery_id, text, task_id=task_id, state=state, error=outcome.error)
                well = well and state == SUCCESS
    for task_id, delivery_id in taken.items():
        text = "no result" + (f" in {arguments.wait:g} s" if config.results else "")
        say(delivery_id, text, task_id=task_id, state=None)
    return 0 if well and not taken else 1


def delivery_line(entry: Entry, as_object: bool = False) -> str:
    """Return a delivery in one line: as JSON, or in columns below `_HEAD`."""
    if as_object:
        return _as_json(_values_of(entry))
    delivery = entry.delivery
    received = datetime.fromisoformat(delivery["received_at"])
    at = received.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    milliseconds = f"{entry.seconds * 1e3:,.1f}"
    error = entry.error if len(entry.error) <= _ERROR else f"{entry.error[: _ERROR - 3]}..."
    what = " ".join(filter(None, (entry.path, delivery["event"], error)))
    columns = (at, entry.id, entry.state, status(entry), milliseconds, what)
    return shown(_LINE.format(*columns).rstrip())


def _group_line(group: Group, as_object: bool) -> str:
    """Return a group of failures in one line: as JSON, or in columns below `_GROUPS`."""
    if as_object:
        return _as_json(group.as_object())
    last = datetime.fromtimestamp(group.last / 1000, UTC)
    about = group.about
    error = ": ".join(filter(None, (about.type, about.text)))
    what = " ".join(filter(None, (about.route, about.task, about.state, error)))
    columns = (f"{last:%Y-%m-%dT%H:%M:%SZ}", group.id, group.state, f"{group.count:,}", what)
    return shown(_GROUP.format(*columns))


def _values_of(entry: Entry) -> dict[str, Any]:
    """Return what is known of a delivery beside its call; ``status`` None: it has no answer."""
    values = {name: getattr(entry, name) for name in _FIELDS}
    empty = {name: values[name] or None for name in ("status", "attempts", "request")}
    return entry.delivery | values | empty


def _outcome_text(outcome: Outcome) -> str:
    """Return how a task has ended: its final state, and the error if there is one."""
    return shown(f"{outcome.state}: {outcome.error}") if outcome.error else outcome.state


def _as_json(value: dict[str, Any], **options: Any) -> str:
    """Return JSON in which characters that a terminal would interpret are escaped."""
    return "\n".join(map(shown, json.dumps(value, **options).split("\n")))

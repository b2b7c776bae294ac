"""Say how many gateways, workers, queues and connections a rate needs, and what breaks first."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from gateway.cli.sizing import costs
from gateway.cli.sizing.model import GIB, MIB, Load, Part, Plan, Pool, plan
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError

#: Option, its metavar, the least and the greatest value, and its help.
_NUMBERS = {
    "rate": ("N", 0.001, 1e7, "requests a second at the peak"),
    "task_time": ("SECONDS", 0, 86_400, "that a task takes"),
    "task_cpu": ("SHARE", 0, 1, "of it that is CPU time, 0 to 1 (0: the task only waits)"),
    "concurrency": ("N", 0, 10_000, "of a worker (prefork: the cores; threads: 64; gevent: 100)"),
    "processes": ("N", 0, 1e6, "gateway processes that there are (as many as are needed)"),
    "workers": ("N", 0, 1e6, "workers that there are (as many as are needed)"),
    "body": ("BYTES", 0, 1e9, "of a request (250)"),
    "result": ("BYTES", 0, 1e9, "of a task's result (250)"),
    "identified": ("SHARE", 0, 1, "of the deliveries with an identity, and so a claim (1)"),
    "claim_ttl": ("SECONDS", 0, 1e9, "that claims are kept: idempotency_window (86400)"),
    "result_ttl": ("SECONDS", 0, 1e9, "that results are kept: result_expires (300)"),
    "cores": ("N", 1, 1024, "of a machine (8)"),
    "memory": ("GIB", 0.1, 1e5, "of a machine (32)"),
    "utilisation": ("SHARE", 0.01, 0.99, "of anything that is aimed at (0.7)"),
}
_WHOLE = {"concurrency", "processes", "workers", "body", "result", "cores"}
_CHOICES = {
    "strategy": (tuple(STRATEGIES), "of the gateway (redis)"),
    "pool": (get_args(Pool), "of the workers (prefork)"),
    "queue_type": (("classic", "quorum"), "(classic)"),
}


def options(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, _, _, text) in _NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    for name, (choices, text) in _CHOICES.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, metavar="|".join(choices), help=text)
    parser.add_argument(
        "--measured",
        metavar="FILE",
        type=Path,
        help="a report of loadtest/run.sh --json: its costs",
    )
    parser.add_argument("--json", action="store_true", help="one object: load, plan, reports")


def run(arguments: argparse.Namespace) -> int:
    load = read_load(arguments)
    known = costs.shipped()
    if arguments.measured:
        known.update(costs.read(_document(arguments.measured), arguments.measured.name, known))
    if f"gateway {load.strategy}" not in known:
        measure = f"loadtest/run.sh strategies --strategies {load.strategy} --json FILE"
        raise ConfigError(
            [
                f"--strategy: what {load.strategy} costs was not measured yet; run {measure}, and "
                "give --measured FILE"
            ]
        )
    found = plan(load, known)
    sources = _sources(load, known)
    if arguments.json:
        shown = {"load": asdict(load), "plan": asdict(found), "reports": sources}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(_lines(load, found, sources)))
    return 0


def read_load(arguments: argparse.Namespace) -> Load:
    """Return what the options ask for; raises `ConfigError` with a line for each bad one."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, (_, low, high, _) in _NUMBERS.items():
        text, flag = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if text is None:
            if name in ("rate", "task_time"):
                problems.append(f"{flag}: it is needed: {_NUMBERS[name][3]}")
            continue
        kind = "whole number" if name in _WHOLE else "number"
        try:
            value = int(text) if name in _WHOLE else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            problems.append(f"{flag}: {text!r} is no {kind} from {low:g} to {high:g}")
        values[name] = value * GIB if name == "memory" else value
    for name, (choices, _) in _CHOICES.items():
        value, flag = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is not None:
            values[name] = value
            if value not in choices:
                problems.append(f"{flag}: {value!r} is not one of {', '.join(choices)}")
    if values.get("pool") == "solo" and values.get("concurrency", 1) > 1:
        problems.append("--concurrency: a solo pool runs one task at a time; leave it out")
    if problems:
        raise ConfigError(problems)
    return Load(**values)


def _document(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError([f"--measured: {file}: {exc.strerror}"]) from exc
    except RecursionError as exc:  # whose text depends on the version of Python
        raise ConfigError([f"--measured: {file} is not JSON: nested too deeply"]) from exc
    except ValueError as exc:
        raise ConfigError([f"--measured: {file} is not JSON: {exc}"]) from exc


def _sources(load: Load, known: costs.Costs) -> dict[str, str]:
    """Return the report of each cost that the strategy, the pool or the claims have."""
    claims = ["claims"] if load.identified else []
    return {
        name: cost.report
        for name, cost in known.items()
        if {load.strategy, "broker", load.pool, *claims} & set(name.split()[1:])
    }


def _lines(load: Load, found: Plan, sources: dict[str, str]) -> Iterator[str]:
    yield (
        f"{load.rate:,g} requests/s with {load.strategy}, tasks of {load.task_time:g} s, "
        f"{load.utilisation:.0%} of {load.cores} cores and {load.memory / GIB:g} GiB a machine"
    )
    yield f"in flight: {found.in_flight:,.0f}, each {found.seconds * 1e3:,.1f} ms"
    yield ""
    row = "{:<24} {:>7} {:>9} {:>11} {:>9} {:>7} {:>7}"
    yield row.format("", "number", "cores", "memory MiB", "machines", "AMQP", "Redis")
    parts: dict[str, Part] = {
        "gateway processes": found.gateways,
        f"workers, {load.pool}:{found.concurrency}": found.workers,
        "RabbitMQ nodes": found.brokers,
        "Redis of results": found.results,
        "Redis of claims": found.claims,
    }
    for name, part in parts.items():
        figures = f"{part.count:,}", f"{part.cores:,.1f}", f"{part.memory / MIB:,.0f}"
        yield row.format(name, *figures, part.machines, f"{part.amqp:,}", f"{part.redis:,}")
    yield ""
    yield f"queues: {found.queues} {load.queue_type}; prefetch multiplier: {found.prefetch}"
    yield f"results kept: {found.stored_results:,.0f}; claims kept: {found.kept_claims:,.0f}"
    if load.identified:
        share = f"{load.identified:.0%} of the deliveries have one (--identified)"
        yield f"claims: {share}, for {load.claim_ttl:,.0f} s (--claim-ttl)"
    yield f"without workers the broker takes messages for {found.backlog_seconds:,.0f} s"
    yield ""
    yield "what breaks first, and at which rate:"
    for limit in found.limits:
        yield f"  {limit.rate:>12,.0f}/s  {limit.what}: {limit.remedy}"
    for note in found.notes:
        yield f"note: {note}"
    yield f"costs: {', '.join(sorted(set(sources.values())))}"

"""Say how many gateways, workers, queues and connections a rate needs, and what breaks first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from gateway.cli.sizing import costs
from gateway.cli.sizing.model import GIB, MIB, Load, Part, Plan, plan
from gateway.config.problems import explain
from gateway.errors import ConfigError
from gateway.model import Text


def options(parser: argparse.ArgumentParser) -> None:
    for name, field in Load.model_fields.items():
        metavar = "N" if field.annotation in (int, float) else "NAME"
        if choices := get_args(field.annotation):
            metavar = "|".join(choices)
        default = f"{field.default / GIB if name == 'memory' else field.default}"
        text = f"{field.description}{'' if field.is_required() else f' ({default})'}"
        parser.add_argument(f"--{field.alias}", type=Text, metavar=metavar, help=text)
    text = "a report of loadtest/run.sh --json: its costs"
    parser.add_argument("--measured", metavar="FILE", type=Path, help=text)
    parser.add_argument("--json", action="store_true", help="one object: load, plan, reports")


def run(arguments: argparse.Namespace) -> int:
    load = read_load(arguments)
    known = costs.shipped()
    if file := arguments.measured:
        try:
            known.update(costs.read(file))
        except OSError as exc:
            raise ConfigError([f"--measured: {file}: {exc.strerror}"]) from exc
    if f"gateway {load.strategy}" not in known:
        measure = f"loadtest/run.sh strategies --strategies {load.strategy} --json FILE"
        problem = f"what {load.strategy} costs was not measured yet; run {measure}"
        raise ConfigError([f"--strategy: {problem}, and give --measured FILE"])
    found = plan(load, known)
    used = {load.strategy, "broker", load.pool, *(["claims"] if load.identified else [])}
    sources = {name: cost.report for name, cost in known.items() if used & {*name.split()[1:]}}
    if arguments.json:
        shown = {"load": load.model_dump(), "plan": asdict(found), "reports": sources}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(_lines(load, found, sources)))
    return 0


def read_load(arguments: argparse.Namespace) -> Load:
    """Return what the options ask for; raises `ConfigError` with a line for each bad one."""
    fields = ((field.alias, getattr(arguments, name)) for name, field in Load.model_fields.items())
    try:
        return Load.model_validate({name: given for name, given in fields if given is not None})
    except ValidationError as exc:
        raise ConfigError(explain(exc, Load, "--")) from exc


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

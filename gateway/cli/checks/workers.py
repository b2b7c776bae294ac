"""Check whether workers answer, and have the tasks that are sent to their queues."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gateway.amqp.workers import Answers, Sufficient
from gateway.cli.checks.finding import Finding, counted, fail, listed, ok, ranged, skipped, warn
from gateway.cli.checks.parameters import unfit
from gateway.cli.checks.queues import Seen, grouped, how_to_start
from gateway.config.settings import Config
from gateway.similar import similar

_SILENT = "frozen, busy in the pool `solo`, without remote control, or with a node name used twice"
_RESTART = "see their logs, and restart those that hang"
#: The check of results that workers could neither reply nor store.
LOST = "lost results"
_WRITABLE = "their logs say why: the Redis of the results may be full, read-only, or away"
#: The pools that drop what Celery raises when a result cannot be stored: their modules and names.
_DROPPING = {"thread": "threads", "gevent": "gevent", "eventlet": "eventlet"}
_KEEPS = (
    "keeps each task whose result cannot be stored as one that runs, with task_acks_late its "
    "message too, and counts none"
)
_SET_UP = "call appserver.setup(app) in their app, or use the pool prefork"
#: The check of workers that wait after each message.
THROUGHPUT = "throughput"
_GREEN = frozenset(("gevent", "eventlet"))
#: A setting that Celery has since 5.7, whose loop for greenlets waits 0.1 s on its events'
#: connection after each message. With Redis as the broker that has no heartbeats, and it does not.
_SINCE_5_7 = "worker_pool_start_method"
_TEN = (
    "in this pool Celery 5.7 takes only ten messages a second, unless the worker was started with "
    "--without-gossip --without-heartbeat, and without -E"
)
_NO_WAIT = "call appserver.setup(app) in their app, or set broker_heartbeat = 0"
_ENABLE = "set worker_enable_remote_control = True and control_exchange = 'celery' in their app"


def sufficient(config: Config, seen: Mapping[str, Seen]) -> Sufficient:
    """Return a function for `remote.ask` that tells whether the answers are sufficient.

    They are complete when all consumers of the queues have answered. Further ones could be useful
    while a task is missing.
    """

    consumers = {queue: it.consumers for queue, it in seen.items()}

    def judged(answers: Answers) -> tuple[bool, bool]:
        well = bool(answers.workers) and all(
            not _lacking(task, queues, answers) for task, queues in config.queues_by_task.items()
        )
        return answers.complete(consumers), not well

    return judged


def unseen(config: Config, why: str) -> list[Finding]:
    """Return findings for the case that the account may not ask workers."""
    remedy = "docs/configuration.md#permissions has what `gateway check` needs"
    return [
        skipped("workers", f"the account may not ask them: {why}", remedy),
        *(_not_checked(task) for task in config.queues_by_task),
    ]


def judge(config: Config, seen: Mapping[str, Seen], answers: Answers) -> list[Finding]:
    """Return findings about the workers that have answered, and about those that have not."""
    if not answers.workers:
        number = sum(it.consumers for it in seen.values())
        return [
            _no_worker(config, number, answers.reachable),
            *(_not_checked(task) for task in config.queues_by_task),
        ]
    found = []
    for _, names in grouped(config):
        counts = {name: seen[name].consumers for name in names if name in seen}
        if silent := sum(answers.silent(*each) for each in counts.items()):
            consumers = counted(sum(counts.values()), "consumer")
            problem = f"{silent} of {consumers} of {ranged(counts)} did not answer"
            found.append(warn("workers", f"{problem}: {_SILENT}, or no Celery workers", _RESTART))
    consumed = {queue for queue, it in seen.items() if it.consumers}
    found = found or [_well(answers)]
    return [*found, *judge_tasks(config, answers, consumed), *_losses(answers), *_waits(answers)]


def judge_tasks(
    config: Config, answers: Answers, consumed: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yield for each task whether all workers of its queues can run it.

    Other queues than those `consumed` have a finding already; None: that is not known.
    """
    for task, queues in sorted(config.queues_by_task.items()):
        if not answers.workers:
            yield _not_checked(task)
        elif consumed is not None and _only_idle(task, queues, answers, consumed):
            yield _elsewhere(task, queues, answers)
        elif problem := _lacking(task, queues, answers):
            yield fail(f"task {task}", problem, _correction(task, answers))
        elif findings := unfit(task, config.routes, _parameters(task, answers)):
            yield from findings
        else:
            yield ok(f"task {task}")


def judge_unseen(config: Config, answers: Answers) -> list[Finding]:
    """Return findings about workers, where the number of consumers is not known."""
    if answers.workers:
        return [_well(answers), *judge_tasks(config, answers), *_losses(answers)]
    start = _start(config)
    return [fail("workers", "none answers", start), *judge_tasks(config, answers)]


def _losses(answers: Answers) -> Iterator[Finding]:
    """Yield findings about results that were lost, and about workers that would not tell."""
    for name, worker in sorted(answers.workers.items()):
        if worker.lost and worker.lost.number:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(worker.lost.last))
            many = counted(worker.lost.number, "result")
            problem = f"{name}: {many} since it was started, the last at {when} UTC"
            yield warn(LOST, f"{problem}; their tasks have run", _WRITABLE)
    dropping = {
        name: worker.pool
        for name, worker in sorted(answers.workers.items())
        if worker.lost is None and worker.pool in _DROPPING
    }
    if dropping:
        pools = listed(sorted({_DROPPING[pool] for pool in dropping.values()}))
        problem = f"{listed(dropping)}: without appserver.setup, a worker of the pool {pools}"
        yield warn(LOST, f"{problem} {_KEEPS}", _SET_UP)


def _waits(answers: Answers) -> list[Finding]:
    """Return a finding about workers whose loop waits after each message."""
    waiting = [
        name
        for name, worker in sorted(answers.workers.items())
        if worker.lost is None and worker.pool in _GREEN and _has_heartbeats(worker.settings or {})
    ]
    return [warn(THROUGHPUT, f"{listed(waiting)}: {_TEN}", _NO_WAIT)] if waiting else []


def _has_heartbeats(settings: Mapping[str, Any]) -> bool:
    return _SINCE_5_7 in settings and bool(settings.get("broker_heartbeat"))


def _start(config: Config) -> str:
    return f"start one: {how_to_start(config.consumed_as, config.fair_setting)}"


def _well(answers: Answers) -> Finding:
    return ok("workers", f"{len(answers.workers)} answered: {listed(sorted(answers.workers))}")


def _not_checked(task: str) -> Finding:
    return skipped(f"task {task}", "not checked without a worker's answer")


def _no_worker(config: Config, consumers: int, reachable: bool) -> Finding:
    if not consumers:
        return fail("workers", "there are none", _start(config))
    many = counted(consumers, "consumer")
    if not reachable:
        return warn("workers", f"{many}, none of which listens to remote control", _ENABLE)
    return fail("workers", f"{many}, none of which answers: {_SILENT}", _RESTART)


def _only_idle(task: str, queues: list[str], answers: Answers, consumed: Collection[str]) -> bool:
    """Tell whether nothing but queues without a worker keeps `task` from being run."""
    holders = _holders(task, answers)
    lacking = any(answers.consuming(queue) - {*holders} for queue in queues)
    silent = any(queue in consumed and not answers.consuming(queue) for queue in queues)
    idle = any(queue not in consumed for queue in queues)
    return bool(holders) and idle and not lacking and not silent


def _elsewhere(task: str, queues: list[str], answers: Answers) -> Finding:
    """Return the finding about a task that workers of other queues have."""
    holders = _holders(task, answers)
    consumed = sorted(set().union(*(answers.workers[name].queues or set() for name in holders)))
    if set(consumed) & set(queues) or not consumed:
        return skipped(f"task {task}", "not checked on queues that no worker consumes")
    return skipped(
        f"task {task}",
        f"no worker consumes {listed(queues)}; {listed(holders)} "
        + ("has the task, and consumes " if len(holders) == 1 else "have the task, and consume ")
        + listed(consumed),
        f'set queue = "{consumed[0]}" in the route, or have a worker consume {listed(queues)} (-Q)',
    )


def _parameters(task: str, answers: Answers) -> dict[str, str]:
    """Return what workers tell of a task's parameters, each with the first of these workers."""
    return {
        text: name
        for name, worker in sorted(answers.workers.items(), reverse=True)
        if (text := worker.parameters.get(task))
    }


def _correction(task: str, answers: Answers) -> str:
    tasks = _all_tasks(answers)
    near = "" if task in tasks else similar(task, tasks)
    hint = f"did you mean {near}? Otherwise " if near else ""
    return (
        f"{hint}import its module in their app (include=[...]), or correct `task` or `queue` in "
        "the route"
    )


def _lacking(task: str, queues: list[str], answers: Answers) -> str:
    """Return why not all workers of the `queues` can run `task`; empty: they can."""
    holders = _holders(task, answers)
    if not holders:
        return f"no worker has it; they have {listed(_all_tasks(answers)) or 'none'}"
    problems, lacking = [], dict[tuple[str, ...], list[str]]()
    for queue in queues:
        without = sorted(answers.consuming(queue) - set(holders))
        if without:
            lacking.setdefault(tuple(without), []).append(queue)
    if idle := [queue for queue in queues if not answers.consuming(queue)]:
        problems.append(f"no worker that answers consumes {ranged(idle)}")
    for names, consumed in lacking.items():
        lack = "lacks" if len(names) == 1 else "lack"
        problems.append(f"{listed(names)} on {ranged(consumed)} {lack} it")
    have = "has" if len(holders) == 1 else "have"
    return f"{', '.join(problems)}; {listed(holders)} {have} it" if problems else ""


def _holders(task: str, answers: Answers) -> list[str]:
    return sorted(name for name, each in answers.workers.items() if task in (each.tasks or ()))


def _all_tasks(answers: Answers) -> list[str]:
    return sorted(set().union(*(each.tasks or set() for each in answers.workers.values())))

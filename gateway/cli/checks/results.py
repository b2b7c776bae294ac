"""Check whether the gateway gets the workers' results.

Workers tell their settings, but Celery hides those that may be secrets. So a trial task is run as
well, where that does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.amqp.reply_channel import ReplyChannel
from gateway.amqp.workers import Answers, Worker
from gateway.celery_message import RESULT_KEY
from gateway.cli.checks import trial, worker_settings
from gateway.cli.checks.finding import FAIL, Finding, fail, listed, ok, skipped, warn
from gateway.cli.checks.queues import Seen
from gateway.cli.checks.trial import LEAST, Trial
from gateway.cli.checks.worker_settings import SAME, STORED, Server, Settings
from gateway.config.settings import Config
from gateway.stores import result_store

_REPLIES = "replies"
_REPLYING = "call appserver.setup(app) in the workers' app, or set its result_backend to rpc://"


async def check(
    config: Config,
    channel: ReplyChannel,
    seen: Mapping[str, Seen],
    answers: Answers,
    deadline: float,
) -> list[Finding]:
    """Return findings about results, from a trial and from the workers' settings."""
    if not answers.workers:
        return []
    reads, settings = _reads(config), worker_settings.of(config, answers)
    found = [*worker_settings.forms(config, settings)] if reads else []
    found += worker_settings.untold(config, answers)
    replies_expected = config.strategy_info.replies
    others = worker_settings.other_servers(config, settings)
    same = await worker_settings.same_servers(config, others.values()) if config.results else {}
    unsafe = [
        name
        for name, server in others.items()
        if not same.get(server) and (reads or not answers.workers[name].only_replies)
    ]
    numbers, untried = trial.ready(seen, answers, unsafe)
    tried = Trial(config, channel, reads, replies_expected)
    if deadline - asyncio.get_running_loop().time() < LEAST:
        untried = untried or "there was no time left"
    elif numbers and (reads or replies_expected):
        await tried.run(numbers, answers, deadline)
    if replies_expected:
        found += _judge_replies(tried, worker_settings.serving(config, answers), untried)
    if reads:
        found += _judge_stored(config, tried, settings, same, untried)
    return found


async def judge(config: Config, answers: Answers) -> list[Finding]:
    """Return findings about results without a trial."""
    settings = worker_settings.of(config, answers)
    others = worker_settings.other_servers(config, settings)
    same = await worker_settings.same_servers(config, others.values())
    return [
        *worker_settings.untold(config, answers),
        *worker_settings.forms(config, settings),
        *worker_settings.elsewhere(config, settings, same),
    ]


def _reads(config: Config) -> bool:
    """Does the gateway read results from the store?"""
    if config.strategy_info.stored:
        return True
    return bool(config.results) and any(
        r.identified or r.answer != "wait" or r.prefer for r in config.routes
    )


def _judge_replies(tried: Trial, workers: Mapping[str, Worker], untried: str) -> list[Finding]:
    missing, sent = len(tried.sent - tried.replied), len(tried.sent)
    if sent and not missing:
        return [ok(_REPLIES, f"{sent} of {sent} came{_but(untried)}")]
    silent = [
        name
        for name, worker in workers.items()
        if worker.settings and not (worker.only_replies or worker.backend.startswith("rpc"))
    ]
    if silent:
        return [fail(_REPLIES, f"{listed(silent)} would not reply over AMQP", _REPLYING)]
    if missing and not tried.busy:
        problem = f"{missing} of {sent} did not come"
        return [fail(_REPLIES, problem, f"{_REPLYING}; or see the workers' logs")]
    return [skipped(_REPLIES, _not_tried(tried, untried))]


def _not_tried(tried: Trial, untried: str) -> str:
    busy = "the workers are busy" if tried.busy else "no time was left"
    return f"not tried: {tried.unreadable or untried or busy}"


def _but(untried: str) -> str:
    return f"; not tried elsewhere: {untried}" if untried else ""


def _judge_stored(
    config: Config,
    tried: Trial,
    settings: Mapping[str, Settings],
    same: Mapping[Server, bool | None],
    untried: str,
) -> list[Finding]:
    missing, sent = len(tried.sent - tried.stored), len(tried.sent)
    if tried.strange:
        return [worker_settings.strange(f"a worker has stored what is {tried.strange}")]
    if sent and not missing:
        # A worker may have got none of them, as another one has a higher priority. But the
        # environment of those that have may name what their settings do not.
        doubts = [
            warn(STORED, each.problem, each.remedy)
            for each in worker_settings.other_places(config, settings, same)
            if each.status == FAIL
        ]
        where = "are where the gateway reads them"
        return [ok(STORED, f"{sent} of {sent} {where}{_but(untried)}"), *doubts]
    readable = not tried.unreadable
    if readable and tried.misplaced:
        return [_misplaced(config, tried, settings)]
    found = [*worker_settings.elsewhere(config, settings, same)]
    if any(finding.status == FAIL for finding in found):
        return found
    if missing and readable and not tried.busy:
        problem = f"{missing} of {sent} came to another Redis, or to none"
        return [fail(STORED, problem + worker_settings.hint(config, settings), SAME)]
    return [*found, skipped(STORED, _not_tried(tried, untried))]


def _misplaced(config: Config, tried: Trial, settings: Mapping[str, Settings]) -> Finding:
    """Return a finding about results that are in the gateway's Redis under other keys."""
    missing = f"{len(tried.sent - tried.stored)} of {len(tried.sent)} are elsewhere"
    own = result_store.key_prefix(config).removesuffix(RESULT_KEY)
    if others := sorted(tried.misplaced - {own}):
        problem = f"{missing}: their keys begin with {others[0]!r}, and not with {own!r}"
        return fail(STORED, problem, worker_settings.same_prefix(config, others[0]))
    problem = f"{missing}: in another database of the same Redis"
    return fail(STORED, problem + worker_settings.hint(config, settings), SAME)

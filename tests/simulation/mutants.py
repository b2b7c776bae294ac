"""Changes of the product, each of which the simulator has to find: they test the simulator.

A further mutant is a line in `MUTANTS`: its name, a file, a text that is in it once, and the text
that takes its place. One whose text is gone fails, as it tests nothing any more.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

#: Within so many seeds of both strategies each mutant has to be found.
SEEDS = 2_000
_ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A change of one file, which the seeds of these strategies run through."""

    name: str
    file: str
    old: str
    new: str

    @property
    def strategies(self) -> str:
        ours = "worker" if self.file.startswith("appserver/") else "pika,redis"
        return _OF_STRATEGY.get(self.file, ours)


def _m(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"gateway/{file}.py", old, new)


def _w(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"appserver/{file}.py", old, new)


_OF_STRATEGY = {
    "gateway/strategies/pika_strategy.py": "pika",
    "gateway/strategies/redis_strategy.py": "redis",
}


_CLAIMS, _RELAY = "claims/store", "relay/delivery"
_CLAIMED = "relay/claimed_delivery"
MUTANTS = [
    _m(
        "an old reply queue kept",
        "strategies/pika_strategy",
        "self._reply_to = await broker",
        "self._reply_to = self._reply_to or await broker",
    ),
    _m(
        "lost replies not told",
        "strategies/pika_strategy",
        "pending.fail(ResultsLost())",
        "pass",
    ),
    _m(
        "an ended wait kept",
        "strategies/base",
        "self._waiting.pop(pending.message.task_id, None)",
        "pass",
    ),
    _m(
        "no fetch after a new subscription",
        "strategies/redis_strategy",
        "await self._fetch(list(self._waiting))",
        "pass",
    ),
    _m(
        "a dead channel kept",
        "amqp/publisher",
        "if channel.connection.is_open:",
        "if False:",
    ),
    _m(
        "no reconnection",
        "amqp/publisher",
        "            self._lost.set()\n            self._drop(",
        "            self._drop(",
    ),
    _m(
        "a block that is not noticed",
        "amqp/publisher",
        'self.blocked = f"blocked: {reason}"',
        "pass",
    ),
    _m(
        "a block that does not end",
        "amqp/publisher",
        'again")\n        self.blocked = ""',
        'again")',
    ),
    _m(
        "no confirm timeout",
        "amqp/publishing_channel",
        "self.confirms.give_up(now - self._confirm_timeout)",
        "self.confirms.give_up(-1.0)",
    ),
    _m(
        "multiple acks ignored",
        "amqp/publishing_channel",
        "        if multiple:",
        "        if False:",
    ),
    _m("no heartbeats", "amqp/broker", "HEARTBEAT = 10\n", "HEARTBEAT = 0\n"),
    _m(
        "a lapsed claim gets another task",
        "claims/scripts",
        "    found = 'lapsed'",
        "    found, task = 'lapsed', ARGV[2]",
    ),
    _m(
        "a lease not renewed",
        "claims/scripts",
        'till = now + ARGV[2]\n    write()\nend\n"""\n)\n\n# Arguments: task, time (ms)\nPROLONG',
        'till = till\n    write()\nend\n"""\n)\n\n# Arguments: task, time (ms)\nPROLONG',
    ),
    _m(
        "a claim's confirm not written",
        _RELAY,
        "self.idempotency.claims.confirm(claim)",
        "pass",
    ),
    _m(
        "an unknown confirm taken for none",
        _RELAY,
        "not_taken=isinstance(error, Unroutable)",
        "not_taken=True",
    ),
    _m(
        "what is unconfirmed not listened for",
        _RELAY,
        "if not isinstance(error, (Rejected, Unroutable)):",
        "if False:",
    ),
    _m(
        "late results not listened for",
        _RELAY,
        "self.idempotency.unattended.listen(self.claim, self.route.reading)",
        "pass",
    ),
    _m(
        "claims not handed over",
        "claims/unattended_tasks",
        "await self._claims.hand_over(",
        "list(",
    ),
    _m(
        "claims that were handed over left there",
        "claims/unattended_tasks",
        "await self._take_over()",
        "pass",
    ),
    _m("an answer not written to its claim", _CLAIMS, "self.finish(claim, answer)", "pass"),
    _m(
        "a failure not written to its claim",
        _CLAIMS,
        'self.fail(claim, outcome.error or "", answer)',
        "pass",
    ),
    _m(
        "a subscription to a late result kept",
        "claims/unattended_tasks",
        "self._subscription.remove(self._prefix + task_id, task.on_message)",
        "pass",
    ),
    _m(
        "a subscription of a joined try kept",
        "claims/result_waiter",
        "subscription.remove(channel, on_message)",
        "pass",
    ),
    _m(
        "a last try that is held",
        _CLAIMED,
        "if claim.tries < self.route.tries and",
        "if claim.tries <= self.route.tries and",
    ),
    _m(
        "earlier tries that are not held",
        _CLAIMED,
        "if claim.tries < self.route.tries and",
        "if False and",
    ),
    _m("a message that was sent forgotten", _CLAIMED, "self.sent = True", "pass"),
    _m("no rejoin", _CLAIMED, "not isinstance(error, ResultsLost)", "True"),
    _m("a transient message", _RELAY, "persistent=later or route.durable", "persistent=False"),
    _m("a result that is not stored", _RELAY, "store=later,", "store=False,"),
    _m(
        "an accepted message not confirmed",
        _RELAY,
        "send = strategy.publish if again",
        'self.mode == "accept" and self.accept()\n        send = strategy.publish if again',
    ),
    _m(
        "further tasks not published",
        _CLAIMED,
        "        try:\n            await self.publish_further()\n",
        "        try:\n",
    ),
    _m(
        "a kept answer not used",
        _CLAIMED,
        "if claim.state == DONE:",
        "if False:",
    ),
    _m(
        "a delivery accepted that was not published",
        "relay/in_flight",
        "ACCEPTED if self.answered or taken or sent else REFUSED",
        "ACCEPTED",
    ),
    _m(
        "deadlines that end with the first",
        "relay/limits",
        "self._arm(min(self._ticks))",
        "pass",
    ),
    _m(
        "services not stopped",
        "background",
        "for service in reversed(self.uses):",
        "for service in ():",
    ),
    _m(
        "a late answer of two gateways",
        "late/store",
        "(redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1]",
        "false",
    ),
    _m(
        "an interrupted late answer sent again",
        "late/record",
        "Verdict(UNKNOWN, ",
        "Verdict(NOT_TAKEN, ",
    ),
    _m("a late answer kept once", "late/answers", "monotonic() + _KEEP_FOR, ", "0.0, "),
    _m(
        "late answers of others left", "late/answers", "due = await self._records.due()", "due = []"
    ),
    _m(
        "a result listened for after it was sent",
        "late/answers",
        "self._forget(record.task_id)\n        self._sending",
        "self._sending",
    ),
    _m(
        "a result that was sent late given",
        "relay/delivery",
        "        if sent:",
        "        if False:",
    ),
    _m("a drain that keeps what is idle", "http/server", "self._close_idle(math.inf)", "pass"),
    _m(
        "a drain that cuts requests off",
        "http/server",
        "while any(stream.busy",
        "while False and any(stream.busy",
    ),
    _m(
        "no limit for a command's reply",
        "stores/pipeline",
        "if end <= now:",
        "if False:",
    ),
    _m("another connection's replies", "stores/pipeline", "        self._sent.clear()\n", ""),
    _m(
        "a script that Redis has forgotten",
        "stores/pipeline",
        "self._scripts.discard(command.words[1])\n            return True",
        "return False",
    ),
    _m(
        "no re-subscription",
        "stores/subscription",
        "        if self._again:\n",
        "        if False:\n",
    ),
    _m(
        "silence not noticed",
        "stores/subscription",
        "if not self._received:",
        "if False:",
    ),
    _m(
        "bytes of the journal not counted",
        "journal/scripts",
        "count + 1, added + size",
        "count + 1, added",
    ),
    _m(
        "a replay beside another one",
        "journal/scripts",
        "if left and left > 0 and left < 600000 then",
        "if false then",
    ),
    _m(
        "a delivery that another replay has run",
        "journal/scripts",
        "elseif before[1] ~= ARGV[3] then",
        "elseif false then",
    ),
    _m(
        "a replay's task that is not written",
        "journal/scripts",
        "'task_id', ARGV[2], 'state', 'replayed'",
        "'state', 'replayed'",
    ),
    _m(
        "failures that stay to be counted",
        "journal/group_scripts",
        "redis.call('ZREM', KEYS[1], id) == 1",
        "redis.call('EXISTS', KEYS[1]) == 1",
    ),
    _m("an entry that is not written whole", "relay/recorders", "whole=not there", "whole=False"),
    _m(
        "what the journal's store does not answer given up",
        "journal/writing",
        "if not self._ends and _is_unanswered(reply):",
        "if False:",
    ),
    _m(
        "an acceptance that waits for the journal",
        "background",
        "LATEST = 0.4",
        "LATEST = 4.0",
    ),
    _m(
        "task ids that are not unique",
        "celery_message",
        'digits = f"{self._next():016x}"',
        'digits = f"{self._next() // 4:016x}"',
    ),
    _m(
        "bytes that stay counted",
        "relay/in_flight",
        "self.context.limits.bytes -= self._size",
        "pass",
    ),
    _m(
        "a Redis that became a replica kept",
        "stores/server",
        "return _elsewhere(error) is not None",
        "return False",
    ),
    _m(
        "subscribers of a Redis that became a replica kept",
        "stores/subscription",
        'self._lose(_Renewed("its server may not be the one to use any more"))',
        "pass",
    ),
    _m("a failed claim kept", "claims/scripts", "    free(ARGV[4])\n", ""),
    _m(
        "a success after a failure that does not count",
        "claims/scripts",
        "local lost = state == 'R'\"\n    + _RESTORE\n    + \"\"\"\nif state ~= 'D' and",
        'local lost = false"\n    + _RESTORE\n    + """\nif state ~= \'D\' and',
    ),
    _m(
        "a cycle of references that keeps a body",
        "pending_task",
        "        self._changed = None\n        self.ended = True\n",
        "        self.ended = True\n",
    ),
    _m(
        "a lease that anybody renews",
        "claims/scripts",
        "if state == 'P' and owner == ARGV[1] then\n    till = now",
        "if state == 'P' then\n    till = now",
    ),
    _m(
        "a claim that anybody releases",
        "claims/scripts",
        "if state == 'P' and owner == ARGV[1] then\n    if ARGV[2]",
        "if state == 'P' then\n    if ARGV[2]",
    ),
    _m(
        "a confirm of another task",
        "claims/scripts",
        "if lost or (state == 'P' and task == ARGV[1]) then",
        "if lost or state == 'P' then",
    ),
    _m(
        "an end of another task",
        "claims/scripts",
        "if state ~= 'D' and task == ARGV[1] then\n    state, rest",
        "if state ~= 'D' then\n    state, rest",
    ),
    _m(
        "a lease that lapses too early",
        "claims/scripts",
        "    state, owner, till = 'P', ARGV[1], now + ARGV[4]",
        "    state, owner, till = 'P', ARGV[1], now + ARGV[4] / 8",
    ),
    _w(
        "acknowledged before what is held is written",
        "task_stream",
        "self._results.end_turn()",
        "pass",
    ),
    _w("nothing written before a slow task", "task_stream", "if name not in self._quick:", "if 0:"),
    _w(
        "a message that is cut is lost",
        "task_stream",
        "self._transport._read_buffer += received",
        "self._transport._read_buffer = received",
    ),
    _w(
        "a message acknowledged twice",
        "task_stream",
        "tags = [self._ended.popleft() for _ in range(len(self._ended))]",
        "tags = [self._ended.popleft() for _ in range(len(self._ended))] * 2",
    ),
    _w(
        "only one acknowledgement of a turn",
        "task_stream",
        "for tag in tags)",
        "for tag in tags[:1])",
    ),
    _w("a held result lost where the script is not there", "held_results", "if not done:", "if 0:"),
    _w(
        "a held reply lost where it cannot be written",
        "held_results",
        "_try(otherwise, reply.correlation_id)",
        "pass",
    ),
    _w("nobody looks for held results", "held_results", "if lasts:", "if 0:"),
    _w(
        "held results not found by the next task",
        "result_script",
        "if held := reply_connection(self.app).held:\n            held.flush()",
        "pass",
    ),
    _w(
        "a success replaced by a failure",
        "result_script",
        "then\n  return 0\nend",
        "then\n  local _ = 0\nend",
    ),
    _w(
        "a connection kept on which a reply could not be written",
        "reply_connection",
        "                if not whole:\n                    self._drop()",
        "                pass",
    ),
    _w(
        "replies with another's id",
        "reply_connection",
        "self._frames(*reply) for reply in replies",
        "self._frames(reply[0], replies[0][1], reply[2]) for reply in replies",
    ),
    _w(
        "a reply to a blocked connection",
        "reply_connection",
        "return not self._blocked",
        "return True",
    ),
    _w(
        "a reply to a closed connection",
        "reply_connection",
        "if self._readable(0):\n                    self._read",
        "if 0:\n                    self._read",
    ),
    _w(
        "a result that was not replied is not stored",
        "reply_backend",
        "if (replied or not final) and not must:",
        "if not must:",
    ),
    _w(
        "a result stored only if it is not replied",
        "reply_backend",
        "must = must_store(request)",
        "must = False",
    ),
    _w(
        "a loss that is not counted",
        "beginnings",
        "pipe.sadd(key(task_id), beginning)",
        "pass",
    ),
    _w(
        "each task with which workers are lost begun again",
        "poison",
        "if lost >= BEGUN_AGAIN:",
        "if 0:",
    ),
    _w(
        "a beginning left after its end",
        "beginnings",
        "self._execute(lambda pipe, key: pipe.delete(key(request.id)))",
        "pass",
    ),
]


def main(only: str, jobs: int, file: Path | None, seeds: int, report: bool) -> int:
    """Try each mutant; return 1 where one is not found or its text is gone."""
    results = []
    for mutant in MUTANTS:
        if re.search(only, mutant.name):
            result = _try(mutant, jobs, seeds)
            results.append(result)
            found = result["found"] or f"NOT FOUND in {seeds} seeds"
            print(f"{found}: {mutant.name}: {result['by']}", flush=True)
    missed = [result["name"] for result in results if not result["found"]]
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")
    if report:
        from tests.simulation.report import set_mutants

        set_mutants(results, [mutant.name for mutant in MUTANTS])
    print(f"{len(results)} mutants, {len(missed)} not found: {', '.join(missed)}")
    return int(bool(missed))


def copy_to(place: Path) -> None:
    """Copy what the simulator needs to a folder, where a mutant is made of it."""
    for name in ("gateway", "appserver", "tests/simulation", "tests/support"):
        shutil.copytree(_ROOT / name, place / name)
    (place / "tests/__init__.py").touch()


def _try(mutant: Mutant, jobs: int, seeds: int) -> dict[str, Any]:
    result = {"name": mutant.name, "file": mutant.file, "found": "", "rules": [], "by": ""}
    text = (_ROOT / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        return result | {"by": f"its text is {text.count(mutant.old)} times in {mutant.file}"}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        copy_to(place)
        (place / mutant.file).write_text(text.replace(mutant.old, mutant.new))
        command = [
            sys.executable, "-m", "tests.simulation", "--seeds", f"1-{seeds}", "--first",
            "--jobs", str(jobs), "--strategies", mutant.strategies,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    found = re.findall(r"^seed (\d+ \w+): (([^:\n]*).*)", done.stdout, re.MULTILINE)
    if not found:
        return result | {"by": done.stderr[-300:]}
    seed, by, _ = found[0]
    rules = [rule for _, _, rule in found]
    return result | {"found": f"seed {seed}", "rules": rules, "by": by[:200]}

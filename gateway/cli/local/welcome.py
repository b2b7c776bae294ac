"""The lines that `gateway dev` prints when everything runs, with commands to copy."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from gateway.cli.checks.finding import listed
from gateway.cli.checks.parameters import unfit
from gateway.cli.checks.settings import events
from gateway.cli.local.first_task import Described
from gateway.cli.local.plan import APP, Plan
from gateway.cli.outgoing import signed_request
from gateway.clock import time
from gateway.config.loading import named_variables
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.shell import curl
from gateway.similar import meant
from gateway.sources.base import Draft
from gateway.stack import Server

_FEW = 3  # the most sources that are named
_DEFAULT = "api.core.main"


def welcome(
    config: Config, plan: Plan, app: str, gateway: Server, exports: Mapping[str, str]
) -> list[str]:
    """Return the lines that explain how to use the servers that were started."""
    lines = ["", "Ready. A POST is relayed as a task, which answers it."]
    plain = [route for route in config.routes if route.path == "/" and not route.source]
    if plain:
        echo = app == APP and plain[0].task == _DEFAULT
        lines += ["The default task answers with the body:" if echo else "For instance:", ""]
        lines += [f"    curl --data 'hello' {gateway.url}/"]
    if plan.demo:
        lines += ["", "A message as WeChat sends it, signed, good for a day:", ""]
        lines += [f"    {_message(config, f'{gateway.url}/wechat')}"]
    elif sent := _sent(config, plan.path, gateway.url):
        lines += ["", "Deliveries as their senders would send them:", "", *sent]
    if exports:
        words = shlex.join(f"{name}={value}" for name, value in exports.items())
        lines += ["", "For `gateway check` and `gateway deliveries list` in another terminal:", ""]
        lines += [f"    export {words}"]
    if named := named_variables(plan.env, plan.path):
        variables = f"the variable{'s' * (len(named) > 1)} {', '.join(sorted(named))}"
        lines += ["", f"These commands read {variables}, too: set the same there."]
    lines += ["", f"Dashboard: {gateway.admin_url}/ (and /healthz, /readyz, /metrics)."]
    return [*lines, "Ctrl-C stops everything.", ""]


def warnings(config: Config, app: str, worker: Described, path: Path | None) -> list[str]:
    """Return a warning for each task of a route that the app's worker does not have.

    Further warnings are for arguments that a task does not take, for events that a route's sender
    does not have, and for what the app needs for its deployment.
    """
    lines, tasks = [], list(worker.tasks)
    for task in sorted(config.queues_by_task.keys() - set(tasks)):
        hint = meant(task, tasks, f"it has {listed(tasks) or 'none'}")
        lines.append(
            f"warning: the app {app} has no task {task}, so {_without(task, config)}; {hint}"
        )
    if lines and path is None:
        lines.append(
            "warning: write a file with the task of each path, and give it by --config:\n\n"
            f'    [[routes]]\n    path = "/"\n    task = "{next(iter(tasks), "shop.take_order")}"\n'
        )
    found = list(events(config))
    for task in sorted(config.queues_by_task.keys() & set(tasks)):
        found += unfit(task, config.routes, {worker.tasks[task]: f"the app {app}"})
    lines += [f"warning: {each.check}: {each.problem}; {each.remedy}" for each in found]
    if config.strategy_info.replies and not worker.replies:
        lines.append(
            f"warning: where it is deployed, the app {app} has to reply for the strategy "
            f"{config.strategy}: call appserver.setup(app) in it; here it replies without that"
        )
    return lines


def _without(task: str, config: Config) -> str:
    """Say what happens to the deliveries whose task, or whose further task, no worker has."""
    own = sorted({_deliveries(it) for it in config.routes if it.task == task})
    also = {_deliveries(it) for it in config.routes if any(more.task == task for more in it.also)}
    parts = [f"{', '.join(own)} answers 502"] if own else []
    parts += [f"{', '.join(sorted(also))} does not start it"] if also else []
    return " and ".join(parts)


def _deliveries(route: Route) -> str:
    """Name the deliveries that a route takes: its path, and its events where it has some only."""
    return f"{route.path} ({', '.join(route.events)})" if route.events else route.path


def _sent(config: Config, path: Path | None, url: str) -> list[str]:
    """Return commands that send a delivery, for each of the first few sources."""
    found = {route.source: route.path for route in reversed(config.routes) if route.source}
    file = f" --config {shlex.quote(str(path))}" if path else ""
    names = sorted(found)
    lines = [
        f"    gateway send --as {shlex.quote(name)}{file} {shlex.quote(url + found[name])}"
        for name in names[:_FEW]
    ]
    return [*lines, f"    as well: {', '.join(names[_FEW:])}"] if names[_FEW:] else lines


def _message(config: Config, url: str) -> str:
    now, source = time(), config.source("wechat")
    _, body = source.sample("", str(secrets.randbelow(10**15)), now)
    return curl("POST", *signed_request(source, Draft(body, url, now)))

"""The page of one delivery: what happened, when, with what, and how to send it again."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from tornado.http1connection import HTTP1Connection
from tornado.web import stream_request_body

from gateway import nesting, shell
from gateway.admin.api.operations import NOT_REPLAYED, APIError
from gateway.admin.pages.bodies import shown
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import escape, lasting
from gateway.audit import LOOK, REPLAY
from gateway.config.route import PARAM
from gateway.config.settings import Config
from gateway.journal import entry as states
from gateway.journal.entry import GONE, OPEN, Entry, Original
from gateway.journal.filter import status
from gateway.journal.replay import replaying, uneditable
from gateway.sources import of

_MOST = 1 << 18  # bytes of a text that is edited here
_LONGEST = 64 * 1024  # bytes of a body in a command that is copied
#: Headers that curl writes by itself.
_CURLS = frozenset(("host", "content-length", "connection", "accept-encoding"))

#: What became of the task, by states; `{task}` and `{error}` are of the delivery.
_ENDS = {
    states.RECEIVED: "It was received, and no more is known of it yet.",
    states.REFUSED: "It was refused: <b>{error}</b>. No task of it is known to be there.",
    states.IGNORED: "No route takes it: <b>{error}</b>.",
    states.ACCEPTED: "The message for <b>{task}</b> is published; no worker has told of it yet.",
    states.RUNNING: "A worker has begun <b>{task}</b>.",
    states.SUCCEEDED: "<b>{task}</b> succeeded{attempts}.",
    states.FAILED: "<b>{task}</b> failed{attempts}: <b>{error}</b>.",
    states.DEAD_LETTERED: "<b>{task}</b> has ended its workers: <b>{error}</b>.",
    states.EXPIRED: "No worker began <b>{task}</b> in time: <b>{error}</b>.",
    states.REPLAYED: "It was sent again as another task, whose end is not known yet.",
    states.ANSWERED_LATE: "<b>{task}</b> succeeded, and its result was sent after the answer.",
    states.LATE_FAILED: "<b>{task}</b> succeeded, but its sender did not take the late result: "
    "<b>{error}</b>.",
    states.LATE_UNCERTAIN: "<b>{task}</b> succeeded; it is not known whether its sender has the "
    "late result: <b>{error}</b>.",
}


class Event(NamedTuple):
    """A line of the timeline, ``at`` seconds after the arrival; its bar begins at ``since``.

    Without a time it is known that it was, but not when.
    """

    name: str
    detail: str
    at: float | None
    since: float = 0.0
    state: str = ""


class OneDelivery(View):
    """Shows a delivery; a look at its body is noted in the log."""

    path, template = "deliveries", "delivery.html"

    async def content(self, *path: str) -> dict[str, Any]:
        entry = await self.delivery(path[0])
        bodies = self.may("bodies") and not self.live
        if bodies:
            self.audit(LOOK, id=entry.id)
        answered, worked = timeline(self.config, entry)
        args, kwargs = entry.arguments() if bodies else ([], {})
        request = Original.of(args, kwargs)
        call = {"args": args, "kwargs": kwargs} if bodies and entry.call else None
        return {
            "answered": answered, "bodies": bodies, "entry": entry, "worked": worked,
            "body": request and shown(request.body, request.headers),
            "call": call and shown(call, {}), "commands": commands(self.config, entry, request),
            "editable": self.may("act") and not uneditable(self.config, entry),
            "facts": facts(entry, self.may("bodies")),
            "headers": request.headers if request else {},
            "open": entry.state in OPEN, "done": entry.state in states.DONE,
            "story": story(self.config, entry),
            "copied": self.root + "deliveries/" + quote(entry.edited_from, ""),
        }  # fmt: skip


@stream_request_body
class Edit(View):
    """Shows the body of a delivery, or its task's call, and publishes it as somebody has edited it.

    What is sent is a new delivery. Nothing else of the pages takes a body.
    """

    path, template, allowed = "deliveries", "edit.html", "GET, POST"

    def prepare(self) -> None:
        super().prepare()
        self.needs("act")
        self._received = bytearray()
        cast(HTTP1Connection, self.request.connection).set_max_body_size(_MOST)

    def data_received(self, chunk: bytes) -> None:
        self._received += chunk

    async def _find(self, delivery_id: str) -> tuple[Entry, str]:
        """Return the delivery and the text to be edited."""
        entry = await self.delivery(delivery_id)
        text, why = editable(entry), uneditable(self.config, entry)
        if why or text is None:
            why = why or "it is not text, or too long"
            raise APIError(409, NOT_REPLAYED, f"It cannot be edited here: {why}.")
        return entry, text

    async def content(self, *path: str) -> dict[str, Any]:
        entry, text = await self._find(path[0])
        self.audit(LOOK, id=entry.id)
        return {"entry": entry, "is_body": entry.original() is not None, "text": text}

    async def act(self, *path: str) -> None:
        entry, before = await self._find(path[0])
        try:
            text = self._received.decode()
            call = edited(entry, text)
        except (ValueError, RecursionError) as exc:
            raise APIError(400, "bad-request", f"It is not what the task takes: {exc}") from None
        if text == before:
            raise APIError(409, NOT_REPLAYED, "Nothing was edited: send it again as it was")
        self.audit(REPLAY, id=entry.id, edited=True)
        async with replaying(self.config) as replayer:
            begun = await replayer.run_edited(entry, call)
        if begun.problem:
            raise APIError(503 if begun.unavailable else 409, NOT_REPLAYED, begun.problem)
        self.finish({"go": f"../{quote(begun.delivery_id, '')}"})


def editable(entry: Entry) -> str | None:
    """Return the body as text, or the arguments as JSON; None: neither can be edited."""
    args, kwargs = entry.arguments()
    text: Any = json.dumps({"args": args, "kwargs": kwargs}, ensure_ascii=False, indent=2)
    if request := entry.original():
        text = request.body
    short = isinstance(text, str) and len(text.encode(errors="replace")) <= _MOST
    return text if short else None


def edited(entry: Entry, text: str) -> bytes:
    """Return the call with what `editable` has returned replaced by `text`.

    Raises ValueError where that is no arguments.
    """
    args, kwargs, embedded = json.loads(entry.call)
    if Original.of(args, kwargs):
        args[2] = text
    else:
        value = json.loads(text)
        nesting.check_levels(value, text)
        if not isinstance(value, dict) or value.keys() != {"args", "kwargs"}:
            raise ValueError('write {"args": [...], "kwargs": {...}}')
        args, kwargs = value["args"], value["kwargs"]
        if not (isinstance(args, list) and isinstance(kwargs, dict)):
            raise ValueError("args is a list, and kwargs an object")
    return json.dumps([args, kwargs, embedded]).encode()


def story(config: Config, entry: Entry) -> str:
    """Say what happened, and whether the sender sends the delivery again; markup."""
    attempts = f" in each of {entry.attempts} attempts" if entry.state == states.FAILED else ""
    if entry.state == states.SUCCEEDED:
        attempts = f" at attempt {entry.attempts}"
    text = _ENDS.get(entry.state, f"A newer gateway says: {entry.state}.").format(
        task=escape(entry.task),
        error=escape(entry.error.rstrip(".") or "the reason is not known"),
        attempts=attempts if entry.attempts > 1 else "",
    )
    if entry.edited_from:
        return f"{text} It is an edited copy of another delivery, so no sender waits for an answer."
    source = entry.delivery.get("source", "")
    sender = f"The sender ({escape(source)})" if source else "The sender"
    if entry.status is None:
        return f"{text} {sender} has no answer yet."
    after = f"after {lasting(entry.seconds)}"
    if entry.status == GONE:
        return f"{text} {sender} had left {after}, before the answer, and may send it again."
    answer = f"{text} {sender} was answered {entry.status} {after}"
    if 200 <= entry.status < 300:
        return f"{answer}, so it will not send this again."
    options = config.sources.get(source)
    most = of(options).tries if options else 1
    if most > 1:
        return f"{answer}, and tries {most} times, as its documents say."
    return f"{answer}: if it repeats what was not taken, it sends this again."


def timeline(config: Config, entry: Entry) -> tuple[list[Event], list[Event]]:
    """Return what is known of the sender's answer, and of the task's work, in their order."""
    if entry.edited_from:
        return [], _worked(entry)
    remote, source = entry.delivery.get("remote", ""), entry.delivery.get("source", "")
    begun = [Event("Received", f"from {remote}" if remote else "", 0.0)]
    if source in config.sources and not entry.request:
        begun.append(Event("Verified", f"{source}, {config.sources[source].scheme}", None))
    if entry.identity and not entry.request:
        joined = entry.published is None and entry.status is not None
        tries = "an earlier try has published its task" if joined else "the first try"
        begun.append(Event("Claimed", f"{tries} of {entry.identity[:8]}…", None))
    if entry.published is not None:
        queue = entry.queue or entry.options.get("exchange", "")
        begun.append(Event("Published", f"to the queue {queue}", entry.published))
    if entry.status is not None:
        name = "Sender left" if entry.status == GONE else "Answered"
        detail = "" if entry.status == GONE else status(entry)
        begun.append(Event(name, detail, entry.seconds, entry.published or 0.0))
    return begun, _worked(entry)


def _worked(entry: Entry) -> list[Event]:
    """Return the runs of the task, each from its publishing on, and its late answer."""
    received = datetime.fromisoformat(entry.delivery["received_at"])
    found: list[Event] = []
    since = entry.published or 0.0

    def add(name: str, detail: str, iso: str, state: str = "") -> float:
        at = max((datetime.fromisoformat(iso) - received).total_seconds(), 0.0)
        found.append(Event(name, detail, at, min(since, at), state))
        return at

    for number, run in enumerate([*entry.runs, entry.run()], 1):
        state, many = run["state"], run.get("attempts", 0)
        if begun := run.get("begun_at"):
            since = add("A worker has begun it", "when that was noticed", begun)
        detail = run.get("error") or "it succeeded"
        detail += f", {many} attempts" if many > 1 else ""
        if state in states.LATE:
            detail, state = "its result was stored", states.SUCCEEDED
        if ended := run.get("ended_at"):
            add("Its end was noticed", detail, ended, state)
        elif number <= len(entry.runs) and state not in OPEN:
            found.append(Event("It has ended", detail, None, state=state))
        if number <= len(entry.runs):
            which = "Sent" if entry.edited_from and number == 1 else "Sent again"
            by = f"by {run['by']}, " if run.get("by") else ""
            since = add(which, f"{by}as another task", run["resent_at"], "")
    if entry.late_at:
        detail = entry.error or "the sender has taken its result"
        add("Late answer", detail, entry.late_at, entry.state)
    return found


def commands(config: Config, entry: Entry, request: Original | None) -> dict[str, str]:
    """Return the request as curl, and as `gateway send` where it has a source; nothing where it
    is not kept, or longer than what a shell takes.

    Signatures and other secret headers are not kept; `gateway send` makes new ones.
    """
    if request is None or entry.redacted:
        return {}
    data = request.raw
    if data is None or len(data) > _LONGEST:
        return {}
    delivery, params = entry.delivery, entry.delivery.get("params", {})
    filled = PARAM.sub(lambda found: quote(params.get(found[1], found[0]), ""), entry.path)
    text = delivery.get("query_string", "")
    base = config.public_url or config.local_url
    url = f"{base}{entry.request.get('path', filled)}" + (f"?{text}" if text else "")
    own = {name: value for name, value in request.headers.items() if name not in _CURLS}
    method = entry.request.get("method") or request.method(text)
    made = {"curl": shell.curl(method, url, own, b"" if method == "GET" else data)}
    if source := delivery.get("source", ""):
        before, argument = shell.argument(data, "-")
        event = f" --event {shell.quoted(delivery['event'])}" if delivery.get("event") else ""
        option = f"--as {shell.quoted(source)} --config gateway.toml{event} --data {argument}"
        made["gateway send"] = f"{before}gateway send {option} {shell.quoted(url)}"
    return made


def sent(entry: Entry) -> tuple[dict[str, str], Any]:
    """Return headers and body, or no headers and the arguments."""
    if request := entry.original():
        return request.headers, request.body
    args, kwargs = entry.arguments()
    return {}, {"args": args, "kwargs": kwargs} if entry.call else ""


def facts(entry: Entry, bodies: bool) -> dict[str, str]:
    """Return what is known beside the call; what was sent in a query only with `bodies`."""
    delivery = entry.delivery
    facts = {
        "Id": entry.id,
        "Edited copy of": entry.edited_from,
        "Source": delivery.get("source", ""),
        "Event": delivery.get("event", ""),
        "Request": " ".join(filter(None, (entry.request.get("method"), entry.request.get("path")))),
        "Parameters": ", ".join(f"{k}={v}" for k, v in delivery.get("params", {}).items()),
        "Query": delivery.get("query_string", "") if bodies else "",
        "Task": entry.task,
        "Task id": entry.task_id,
        "Queue": entry.queue,
        "Options": json.dumps(entry.options) if entry.options and bodies else "",
        "Identity": entry.identity,
        "Trace": delivery.get("traceparent", ""),
        "Redacted": ", ".join(entry.redacted),
    }
    return {name: value for name, value in facts.items() if value}

"""Slack. https://docs.slack.dev/authentication/verifying-requests-from-slack/"""

from __future__ import annotations

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import identity, name, read_if_form, read_if_json, utf8
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import check_time, header, raw

TIMESTAMP = "x-slack-request-timestamp"


#: https://docs.slack.dev/reference/events, interactions, and commands, which begin with a slash.
EVENTS = (
    "app_*", "assistant_*", "bot_*", "call_rejected", "channel_*", "dnd_updated",
    "dnd_updated_user", "email_domain_changed", "emoji_changed", "entity_details_requested",
    "event_callback", "external_org_*", "file_*", "function_executed", "grid_migration_*",
    "group_*", "im_*", "invite_requested", "link_shared", "member_joined_channel",
    "member_left_channel", "message", "message_metadata_*", "pin_added", "pin_removed",
    "reaction_added", "reaction_removed", "resources_added", "resources_removed", "scope_denied",
    "scope_granted", "shared_channel_invite_*", "star_added", "star_removed", "subteam_*", "team_*",
    "tokens_revoked", "url_verification", "user_*", "workflow_*", "block_actions",
    "block_suggestion", "dialog_*", "interactive_message", "message_action", "shortcut",
    "view_closed", "view_submission", "ssl_check", "/*",
)  # fmt: skip


class Slack(HMACSource):
    """Signs the time and the body.

    The event is the inner event's ``type``, or else the ``type``; for interactions the payload's
    ``type``, for slash commands the ``command``. The JSON's ``event_id`` identifies an event, with
    the app, the workspace and the type. Interactions and commands are forms; they have no id and
    are not sent again. An ``ssl_check`` is answered, also without a signature, and runs nothing.
    """

    samples = {
        "": Sample(
            "app_mention",
            '{"type":"event_callback","event_id":"$id","event":{"type":"$event","text":"hello"}}',
        )
    }
    example = Example(
        {"secrets": "8f742231b10e8888abcd99yyyzzz85a5"},
        other_secret="8f742231b10e8888abcd99yyyzzz85a6",
        proof="x-slack-signature",
        timed=True,
    )

    events = EVENTS
    header = "x-slack-signature"
    prefix = b"v0="
    deadline = 2.5
    fallback = ""
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        if self.header not in request.headers and _is_check(request.body):
            return _CHECKED
        timestamp = header(request, TIMESTAMP)
        check_time(timestamp, request.received_at, self.options.tolerance)
        self.check(request, b"v0:", raw(timestamp), b":", request.body)
        # Chosen by the body, because the content type is not signed.
        return (_of_json if request.body[:1] == b"{" else _of_form)(request.body)

    def sign(self, draft: Draft) -> Signed:
        timestamp = str(int(draft.now))
        headers = self.signature(b"v0:", timestamp.encode(), b":", draft.body)
        return Signed(draft.body, {TIMESTAMP: timestamp, **headers})


#: Slack checks the certificate, sometimes without a signature, and expects a 200.
_CHECKED = Verified(b"", event="ssl_check", challenge=Answer(200, "", b""))


def _is_check(body: bytes) -> bool:
    fields = dict(read_if_form(body))
    return fields.get("ssl_check") == "1" and "payload" not in fields


def _of_json(body: bytes) -> Verified:
    message = read_if_json(body)
    kind = message.get("type")
    if kind == "url_verification":
        challenge = name(message.get("challenge"))
        return Verified(body, event=kind, challenge=Answer(200, TEXT, challenge.encode()))
    inner = message.get("event")
    if isinstance(inner, dict):
        kind = inner.get("type")
    app = (message.get("api_app_id"), message.get("team_id"))
    return Verified(body, identity(message.get("event_id"), *app, kind), name(kind))


def _of_form(body: bytes) -> Verified:
    fields = dict(read_if_form(body))
    if "payload" in fields:
        payload = read_if_json(fields["payload"].encode("latin-1"))
        return Verified(body, event=name(payload.get("type")))
    if _is_check(body):
        return _CHECKED
    return Verified(body, event=utf8(fields.get("command", "")))

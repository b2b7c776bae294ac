"""GitHub. https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""

from __future__ import annotations

import re

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.fields import identity, name, read_if_form, read_if_json
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import digest

DELIVERY = "x-github-delivery"
#: The hook, and the repository, organization or App that it belongs to.
HOOK = (
    "x-github-hook-id",
    "x-github-hook-installation-target-type",
    "x-github-hook-installation-target-id",
)
# https://docs.github.com/en/webhooks/webhook-events-and-payloads
#: Events without an action, at least in older versions.
PLAIN = (
    "create", "delete", "deployment", "deployment_status", "fork", "gollum", "page_build", "ping",
    "public", "push", "repository_import", "security_and_analysis", "status", "team_add",
    "workflow_dispatch",
)  # fmt: skip
#: Events with an action.
KINDS = (
    "branch_protection_configuration", "branch_protection_rule", "check_run", "check_suite",
    "code_scanning_alert", "commit_comment", "content_reference", "custom_property",
    "custom_property_values", "dependabot_alert", "deploy_key", "deployment",
    "deployment_protection_rule", "deployment_review", "deployment_status", "discussion",
    "discussion_comment", "github_app_authorization", "installation", "installation_repositories",
    "installation_target", "issue_comment", "issue_dependencies", "issues", "label",
    "marketplace_purchase", "member", "membership", "merge_group", "meta", "milestone", "org_block",
    "organization", "package", "personal_access_token_request", "project", "project_card",
    "project_column", "projects_v2", "projects_v2_item", "projects_v2_status_update",
    "pull_request", "pull_request_review", "pull_request_review_comment",
    "pull_request_review_thread", "registry_package", "release", "repository",
    "repository_advisory", "repository_dispatch", "repository_ruleset",
    "repository_vulnerability_alert", "secret_scanning_alert", "secret_scanning_alert_location",
    "secret_scanning_scan", "security_advisory", "sponsorship", "star", "sub_issues", "team",
    "watch", "workflow_job", "workflow_run",
)  # fmt: skip
#: The actions of the events that are used most.
ACTIONS = {
    "issues": (
        "assigned", "closed", "deleted", "demilestoned", "edited", "labeled", "locked",
        "milestoned", "opened", "pinned", "reopened", "transferred", "typed", "unassigned",
        "unlabeled", "unlocked", "unpinned", "untyped",
    ),
    "issue_comment": ("created", "deleted", "edited", "pinned", "unpinned"),
    "pull_request": (
        "assigned", "auto_merge_disabled", "auto_merge_enabled", "closed", "converted_to_draft",
        "demilestoned", "dequeued", "edited", "enqueued", "labeled", "locked", "milestoned",
        "opened", "ready_for_review", "reopened", "review_request_removed", "review_requested",
        "synchronize", "unassigned", "unlabeled", "unlocked",
    ),
    "release": (
        "created", "deleted", "edited", "prereleased", "published", "released", "unpublished",
    ),
    "workflow_run": ("completed", "in_progress", "requested"),
}  # fmt: skip
# Payloads are large, and begin with the action where they have one, so they need not be parsed.
_action = re.compile(rb'\{"action":"([a-z_]{1,100})"').match


class GitHub(HMACSource):
    """Signs the body.

    The headers are not signed. The event is ``X-GitHub-Event`` and, where the body has one, its
    ``action``, as in ``issues.opened``. ``X-GitHub-Delivery`` identifies what has happened, for all
    hooks and Apps: with the hook, its owner and the digest of the body it identifies the delivery.
    """

    samples = {
        "": Sample(
            "issues.opened", '{"action":"$action","issue":{"id":$id,"number":1,"title":"größe"}}'
        )
    }
    example = Example(
        {"secrets": "It's a Secret to Everybody"},
        other_secret="It's a Secret to Nobody",
        proof="x-hub-signature-256",
        opaque=True,
    )

    events = (*PLAIN, *(f"{kind}.{action}" for kind in KINDS for action in ACTIONS.get(kind, "*")))
    header = "x-hub-signature-256"
    prefix = b"sha256="
    deadline = 9.0
    secret_headers = frozenset([header, "x-hub-signature"])

    def verify(self, request: Request) -> Verified:
        self.check(request, request.body)
        event = request.headers.get("x-github-event", "")
        if event and (action := _read_action(request.body)):
            event = f"{event}.{action}"
        said = (request.headers.get(name, "") for name in (DELIVERY, *HOOK))
        return Verified(request.body, identity(*said, event, digest(request.body)), event)

    def sign(self, draft: Draft) -> Signed:
        headers = self.signature(draft.body)
        if draft.event:
            headers["x-github-event"] = draft.event.partition(".")[0]
        if draft.identity:
            headers[DELIVERY] = draft.identity
        return Signed(draft.body, headers)


def _read_action(body: bytes) -> str:
    """Return the action of a payload, which may be JSON or a form; empty where it has none."""
    if body.startswith(b"payload="):
        fields = read_if_form(body)
        body = fields[0][1].encode("latin-1") if fields else b""
    if found := _action(body):
        return found[1].decode()
    return name(read_if_json(body).get("action")) if b'"action"' in body else ""

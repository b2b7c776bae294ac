"""GitLab's secret token. https://docs.gitlab.com/user/project/integrations/webhooks/"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.bearer import BearerSource
from gateway.sources.fields import identity
from gateway.sources.signatures import digest

#: https://docs.gitlab.com/user/project/integrations/webhook_events/
EVENTS = (
    "Push Hook", "Tag Push Hook", "Issue Hook", "Confidential Issue Hook", "Work Item Hook",
    "Confidential Work Item Hook", "Note Hook", "Confidential Note Hook", "Merge Request Hook",
    "Wiki Page Hook", "Pipeline Hook", "Job Hook", "Build Hook", "Deployment Hook", "Member Hook",
    "Subgroup Hook", "Project Hook", "Feature Flag Hook", "Release Hook", "Milestone Hook",
    "Emoji Hook", "Resource Access Token Hook", "Resource Deploy Token Hook", "Vulnerability Hook",
    "System Hook",
)  # fmt: skip


class GitLab(BearerSource):
    """Signs nothing: ``X-Gitlab-Token`` is the secret. For a signing token use `standard`.

    The event is ``X-Gitlab-Event``. ``Idempotency-Key`` (before GitLab 17.4:
    ``X-Gitlab-Event-UUID``, which hooks that trigger each other share) identifies the delivery,
    with the instance, the event and the digest of the body. ``X-Gitlab-Webhook-UUID`` is not used:
    it is another one in each try.
    """

    samples = {"": Sample("Push Hook", '{"object_kind":"push","ref":"refs/heads/main"}')}
    example = Example(
        {"secrets": "glwt-größe"}, other_secret="glwt-größer", proof="x-gitlab-token", opaque=True
    )

    events = EVENTS
    header = "x-gitlab-token"
    deadline = 9.0
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        self.check(request)
        headers = request.headers
        key = headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid", "")
        instance, event = headers.get("x-gitlab-instance", ""), headers.get("x-gitlab-event", "")
        return Verified(request.body, identity(key, instance, event, digest(request.body)), event)

    def sign(self, draft: Draft) -> Signed:
        headers = self.token()
        if draft.event:
            headers["x-gitlab-event"] = draft.event
        if draft.identity:
            headers["idempotency-key"] = draft.identity
        return Signed(draft.body, headers)

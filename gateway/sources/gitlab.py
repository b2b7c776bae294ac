"""GitLab's secret token. https://docs.gitlab.com/user/project/integrations/webhooks/"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.bearer import BearerSource


class GitLab(BearerSource):
    """Signs nothing: ``X-Gitlab-Token`` is the secret. For a signing token use `standard`.

    The event is ``X-Gitlab-Event``. ``Idempotency-Key`` (before GitLab 17.4:
    ``X-Gitlab-Event-UUID``) identifies the delivery.
    """

    samples = {"": Sample("Push Hook", '{"object_kind":"push","ref":"refs/heads/main"}')}
    example = Example(
        {"secrets": "glwt-größe"}, other_secret="glwt-größer", proof="x-gitlab-token", opaque=True
    )

    header = "x-gitlab-token"
    deadline = 9.0
    secret_headers = frozenset([header])

    def verify(self, request: Request) -> Verified:
        self.check(request)
        headers = request.headers
        identity = headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid", "")
        return Verified(request.body, identity, headers.get("x-gitlab-event", ""))

    def sign(self, draft: Draft) -> Signed:
        headers = self.token()
        if draft.event:
            headers["x-gitlab-event"] = draft.event
        if draft.identity:
            headers["idempotency-key"] = draft.identity
        return Signed(draft.body, headers)

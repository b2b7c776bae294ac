"""GitLab's secret token. https://docs.gitlab.com/user/project/integrations/webhooks/"""

from __future__ import annotations

from gateway.delivery import Request
from gateway.sources.base import Draft, Signed, Verified
from gateway.sources.bearer import BearerSource


class GitLab(BearerSource):
    """Signs nothing: ``X-Gitlab-Token`` is the secret. GitLab's signing token is `standard`.

    The event is ``X-Gitlab-Event``; ``Idempotency-Key``, before GitLab 17.4
    ``X-Gitlab-Event-UUID``, identifies the delivery.
    """

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

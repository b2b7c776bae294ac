"""What a hostile or careless sender can do with a block: each of these was possible once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.sources.base import Draft
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, received, receiver, sender


def verified(scheme: str, message: Any, url: str = URL, **headers: str) -> Any:
    """Return what is known of a message that the sender of `scheme` has signed."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    signed = sender(scheme).sign(Draft(body, url, NOW))
    signed.headers.update(headers)
    return receiver(scheme).verify(received(signed, url))


@pytest.mark.parametrize(
    ("scheme", "message", "event"),
    [
        ("sendgrid", [{"event": "open"}, {"event": "bounce"}, {"event": "open"}], "open,bounce"),
        ("sendgrid", [{"event": "open"}, {"other": 1}], "open"),
        ("sendgrid", [], ""),
        ("hubspot", [{"subscriptionType": "a"}, {"subscriptionType": "b"}], "a,b"),
        (
            "meta",
            {"object": "page", "entry": [{"changes": [{"field": "feed"}, {"field": "mention"}]}]},
            "page.feed,page.mention",
        ),
    ],
)
def test_a_batch_has_the_events_of_all_its_items(scheme, message, event):
    assert verified(scheme, message).event == event

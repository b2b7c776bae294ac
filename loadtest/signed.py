"""Signed deliveries, which have an identity: the route that takes them, and how they are sent."""

from __future__ import annotations

from dataclasses import replace

from loadtest.bench import Front
from loadtest.envelope import GITHUB, SECRET

#: A source and a route for a gateway's configuration; settings come before it.
ROUTE = f"""
[sources.github]
scheme = "github"
secrets = "{SECRET.decode()}"

[[routes]]
path = "/signed"
source = "github"
task = "appserver.tasks.echo"

"""


def signed(front: Front) -> Front:
    """Return `front` as it is for deliveries that are signed."""
    return replace(front, path="/signed", envelope=GITHUB)

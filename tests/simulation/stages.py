"""The events of a delivery's stages that a simulation has seen: cells of a table, see `Stage`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from gateway.relay.delivery import STAGES, DeliveryInFlight, Stage

EVENTS = [field.name for field in fields(Stage) if field.name != "waits_for"]
#: The cells that are not empty.
CELLS = {
    f"{stage.waits_for}: {event}"
    for stage in STAGES
    for event in EVENTS
    if getattr(stage, event) is not DeliveryInFlight._never
}
#: Those that were entered since `watch`.
entered: set[str] = set()


def watch() -> None:
    """Note each event, once for a process."""
    for stage in STAGES:
        for event in EVENTS:
            cell = f"{stage.waits_for}: {event}"
            object.__setattr__(stage, event, _noted(cell, getattr(stage, event)))


def _noted(cell: str, action: Callable[..., None]) -> Callable[..., None]:
    def noted(*args: Any) -> None:
        entered.add(cell)
        action(*args)

    return noted

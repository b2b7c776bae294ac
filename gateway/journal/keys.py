"""The names of the journal's keys and of its channel in Redis."""

from __future__ import annotations

from gateway.config.settings import Config


class Keys:
    """The keys of one deployment; `scripts` and `group_scripts` say what they have.

    With `part`, which ends with a colon, they are those of another journal with the same channel.
    """

    def __init__(self, config: Config, part: str = ""):
        # In a cluster the whole journal is on one node, by the tag in braces.
        prefix = f"{config.prefix}{{journal}}:"
        self.changes = f"{prefix}changes"
        prefix += part
        self.deliveries = f"{prefix}deliveries"
        self.refused = f"{prefix}refused"
        self.open = f"{prefix}open"
        self.bytes = f"{prefix}bytes"
        self.changed = f"{prefix}changed"
        self.missed = f"{prefix}missed"
        self.failing = f"{prefix}failing"
        self.counts = f"{prefix}counts"
        self.groups = f"{prefix}groups"
        self.news = f"{prefix}news"
        self.told = f"{prefix}told"
        self.rates = f"{prefix}rates"
        #: What the key of each delivery begins with.
        self.prefix = f"{prefix}delivery:"
        #: What the key of each group begins with.
        self.group = f"{prefix}group:"

    def of(self, delivery_id: str) -> str:
        return self.prefix + delivery_id

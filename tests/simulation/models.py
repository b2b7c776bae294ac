"""The models of the servers."""

from tests.simulation.plain_broker import Broker
from tests.simulation.plain_redis import Redis

__all__ = ["Broker", "Redis"]

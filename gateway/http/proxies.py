"""Whose word for a sender's address is believed."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

#: Addresses may be made up: of more than these none is remembered.
_REMEMBERED = 1_000
#: Characters; an IPv6 address with a zone has fewer.
_LONGEST = 100


class Proxies:
    """The networks of the proxies in front, as in ``trusted_proxies``."""

    def __init__(self, networks: Iterable[str]):
        self._networks = [ip_network(text) for text in networks]
        self._known: dict[str, bool] = {}

    def sender(self, peer: str, forwarded_for: str) -> str:
        """Return the sender's address: of those that are not trusted the one nearest to us.

        `forwarded_for` is X-Forwarded-For, which counts only where `peer` is trusted. What is too
        long for an address is cut off.
        """
        if forwarded_for and self._trusted(peer):
            for address in reversed(forwarded_for.split(",")):
                if (address := address.strip()[:_LONGEST]) and not self._trusted(address):
                    return address
        return peer

    def _trusted(self, address: str) -> bool:
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[address] = self._in_a_network(address)
        return known

    def _in_a_network(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        # A dual-stack socket's IPv4 peers.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)

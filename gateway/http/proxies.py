"""Resolve the client's address behind trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

#: Addresses in the cache. It is bounded because senders can invent addresses.
_REMEMBERED = 1_000
#: The most characters of an address; an IPv6 address with a zone has fewer.
_LONGEST = 100


class Proxies:
    """The networks of the trusted proxies (setting ``trusted_proxies``)."""

    def __init__(self, networks: Iterable[str]):
        self._networks = [ip_network(text) for text in networks]
        self._known: dict[str, bool] = {}

    def sender(self, peer: str, forwarded_for: str) -> str:
        """Return the sender's address: the last address that is not a trusted proxy's.

        `forwarded_for` is the X-Forwarded-For header, which is used only where `peer` is a trusted
        proxy. What is too long for an address is cut off.
        """
        if forwarded_for and self._trusted(peer):
            for address in reversed(forwarded_for.split(",")):
                if (address := _without_port(address)) and not self._trusted(address):
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
        # A dual-stack socket reports IPv4 peers as mapped IPv6 addresses.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return an address as some proxies write it, ``192.0.2.1:80`` or ``[2001:db8::1]:80``."""
    text = text.strip()[:_LONGEST]
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text

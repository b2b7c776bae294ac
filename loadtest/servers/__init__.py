"""Servers that the gateway is compared with, or that stand in for a part of it.

Each runs in a process of its own: ``python -m loadtest.servers.NAME``.
"""

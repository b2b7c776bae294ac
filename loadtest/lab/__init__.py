"""Programs that the load lab measures: libraries and servers by themselves, without the gateway.

Those that measure end by themselves and print their figures as a line of JSON. They need no server
but those that their options name, so each can be run alone: ``python -m loadtest.lab.NAME``.
"""

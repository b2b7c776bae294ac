"""Does each alert fire in its fault, and is it silent in the others?

``make alerts`` runs a real Prometheus beside a real gateway, with the rules of deploy/prometheus,
whose durations it shortens, and breaks what the gateway needs.
"""

"""Relay requests to tasks: routes, limits, deadlines, idempotency, result URLs."""

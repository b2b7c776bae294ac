"""Redis clients: results by push and by query, subscriptions, pipelined commands."""

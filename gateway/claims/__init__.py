"""A delivery is taken once: who has taken it, in Redis."""

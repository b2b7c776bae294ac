"""A request's way, step by step."""

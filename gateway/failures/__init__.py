"""Failures are counted in groups, and told to whom `[notify]` names."""

"""The archive's schema, version by version (Alembic)."""

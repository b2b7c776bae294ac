"""The deliveries, and what finds a text in them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_COMPARED = ("path", "source", "event", "failure")
_POSTGRESQL = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX deliveries_text ON deliveries"
    " USING gin (lower(error || ' ' || call) gin_trgm_ops)",
)
# `deliveries_text` has no copy of the texts, so the triggers have to tell it what it had.
_SQLITE = (
    "CREATE VIRTUAL TABLE deliveries_text USING fts5"
    "(error, call, content='deliveries', tokenize='trigram')",
    "CREATE TRIGGER deliveries_added AFTER INSERT ON deliveries BEGIN"
    " INSERT INTO deliveries_text(rowid, error, call) VALUES (new.rowid, new.error, new.call); END",
    "CREATE TRIGGER deliveries_removed AFTER DELETE ON deliveries BEGIN"
    " INSERT INTO deliveries_text(deliveries_text, rowid, error, call)"
    " VALUES ('delete', old.rowid, old.error, old.call); END",
)


def upgrade() -> None:
    text = sa.Text
    op.create_table(
        "deliveries",
        sa.Column("ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", text, primary_key=True),
        *(sa.Column(name, text, nullable=False) for name in ("state", "task_id", "identity")),
        sa.Column("status", sa.Integer),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("published", sa.Float),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("replays", sa.Integer, nullable=False),
        *(
            sa.Column(name, text, nullable=False)
            for name in ("ended_at", "replaying", "error", *_COMPARED, "about", "call")
        ),
        postgresql_partition_by="RANGE (ms)",
    )
    for columns in (("id",), ("task_id",), ("state", "ms", "seq")):
        op.create_index(f"deliveries_{columns[0]}", "deliveries", columns)
    # It has all that filters compare.
    filters = ("ms", "seq", "state", "status", *_COMPARED, "id")
    op.create_index("deliveries_filters", "deliveries", filters)
    for statement in _POSTGRESQL if op.get_bind().dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)

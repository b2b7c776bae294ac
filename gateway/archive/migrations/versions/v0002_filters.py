"""What filters compare, in columns of their own, and an index that has all of it."""

import sqlalchemy as sa
from alembic import op

from gateway.archive.tables import entry, row

revision = "0002"
down_revision = "0001"

_COMPARED = ("path", "source", "event", "failure")
_KEY = ("ms", "seq", "id")
# Of what a delivery is made without its call.
_READ = (
    "state", "task_id", "status", "seconds", "published", "attempts", "replays", "ended_at",
    "replaying", "error", "about",
)  # fmt: skip
_SOME = 1_000


def upgrade() -> None:
    for name in _COMPARED:
        op.add_column("deliveries", sa.Column(name, sa.Text, nullable=False, server_default=""))
    connection = op.get_bind()
    table = sa.table("deliveries", *map(sa.column, (*_KEY, *_READ, *_COMPARED)))
    key = [table.c[name] for name in _KEY]
    change = sa.update(table).where(*(each == sa.bindparam(f"its_{each.name}") for each in key))
    some = sa.select(*key, *(table.c[name] for name in _READ)).order_by(*key).limit(_SOME)
    found = connection.execute(some).all()
    while found:
        rows = [row(entry(each, call=False)) for each in found]
        values = [
            {f"its_{name}": each[name] for name in _KEY} | {name: each[name] for name in _COMPARED}
            for each in rows
        ]
        connection.execute(change, values)
        after = sa.tuple_(*key) > sa.tuple_(*map(sa.literal, found[-1][:3]))
        found = connection.execute(some.where(after)).all()
    compared = ("ms", "seq", "state", "status", *_COMPARED, "id")
    op.create_index("deliveries_filters", "deliveries", compared)

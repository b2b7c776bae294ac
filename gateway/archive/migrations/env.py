"""Run the archive's migrations, on the connection that `gateway.archive.database` has opened."""

from alembic import context

from gateway.archive.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table="archive_version",
)
context.run_migrations()

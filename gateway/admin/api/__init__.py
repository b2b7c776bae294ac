"""The HTTP API of the admin port: the journal's deliveries, their replay, and the history."""

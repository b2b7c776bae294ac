"""The archive: what the journal had, in SQL, for as long as it is wanted."""

"""Documents on disk: the schema, reading, writing, and the ledger of what was removed."""

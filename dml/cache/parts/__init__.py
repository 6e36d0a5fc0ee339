"""Parts of entries: rows as checked bytes, their records, and writing them while rows flow."""

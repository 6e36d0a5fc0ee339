"""These operators see one row at a time."""

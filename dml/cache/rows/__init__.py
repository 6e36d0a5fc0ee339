"""Rows of a source are stored unit by unit, read back, and checked against a recomputed sample."""

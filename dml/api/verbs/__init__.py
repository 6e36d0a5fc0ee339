"""Verbs of a Dataset, by family; each verb checks its arguments and appends a node."""

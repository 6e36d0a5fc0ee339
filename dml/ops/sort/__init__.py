"""Rows are sorted by columns here, in memory or with sorted runs on disk."""

"""Parquet: footers, statistics, row groups read page by page."""

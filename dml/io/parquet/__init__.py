"""Parquet files are read here: footers, statistics, and row groups page by page."""

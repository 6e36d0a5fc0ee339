"""Cached rows are looked up by name, by content, and by columns that other entries hold."""

"""Rows are sorted by columns here, within memory and beyond it."""

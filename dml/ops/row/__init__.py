"""Operators that process one row at a time are defined here."""

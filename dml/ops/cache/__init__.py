"""Operators that cache rows in memory or on disk are defined here."""

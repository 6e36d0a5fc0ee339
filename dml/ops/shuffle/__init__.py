"""Operators that permute rows in windows, by source pieces, or completely are defined here."""

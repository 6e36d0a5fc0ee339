"""Operators that combine several inputs are defined here: concatenation, zip, mix, choice."""

"""Whole files are read as rows of bytes here."""

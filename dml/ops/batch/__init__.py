"""Operators that form batches, windows and packed rows, or split batches, are defined here."""

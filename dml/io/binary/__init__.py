"""Whole files as bytes."""

"""Decide the number of workers of a run, and scale its cluster to that number."""

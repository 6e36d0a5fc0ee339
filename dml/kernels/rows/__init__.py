"""Rows have ids, random numbers keyed by id, permutations, and indexes of equal keys."""

"""Texts for people show every station of a plan, costs, near misses, and differences of names."""

"""Texts for people show a plan after each phase, costs, near misses, differences of names."""

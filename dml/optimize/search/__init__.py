"""Searches by cost choose the ends of stages, the rows to cache, and the prefixes to share."""

"""The rewrites, one family to a file."""

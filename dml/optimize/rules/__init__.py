"""The rewrite rules are defined here, one family to a file."""

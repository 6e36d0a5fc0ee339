"""The rewrite rules are defined here, one family per file."""

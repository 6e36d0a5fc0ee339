"""These operators compute aggregates, first rows and functions of rows with equal keys."""

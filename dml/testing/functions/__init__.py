"""This package says what the functions of columns mean, one Python value at a time."""

"""The functions of columns are defined here for the oracle, one Python value at a time."""

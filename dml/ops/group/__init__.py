"""Operators on rows with equal keys are defined here: aggregates, first rows, functions."""

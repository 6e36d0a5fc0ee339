"""Sorting, shuffling and joining on a cluster: sorted runs, ranges, two rounds of tasks."""

"""This folder decides how many workers a run should have, and has a cluster follow."""

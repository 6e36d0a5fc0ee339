"""Simulate a run: its time on another cluster, and a lower bound that no schedule beats."""

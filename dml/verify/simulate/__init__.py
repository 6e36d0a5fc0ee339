"""A digital twin of a run: its time on another cluster, and a bound that no schedule beats."""

"""The number of workers of a run is decided here, and a cluster is scaled to it."""

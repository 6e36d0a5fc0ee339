"""Run users' functions in parallel on slices of an ordered flow, with results in order."""

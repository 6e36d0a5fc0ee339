"""A plan becomes one ordered flow: stages below, stream operators above, runs inside of runs."""

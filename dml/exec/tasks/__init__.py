"""Execute tasks in workers: read units, run steps on blocks, cut partitions, record lost rows."""

"""Workers execute tasks: they read units, run steps on blocks, cut partitions, count lost rows."""

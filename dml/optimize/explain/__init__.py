"""The optimizer's results are printed: plans by phase, costs, near misses, name differences."""

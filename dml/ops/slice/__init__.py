"""These operators choose elements by their place: take, skip, shard, splits, passes."""

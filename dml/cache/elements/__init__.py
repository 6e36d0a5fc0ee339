"""Elements of a stream are cached in order, in memory or as parts of a store."""

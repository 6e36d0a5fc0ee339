"""These operators cache rows: in memory, on disk, or where that pays."""

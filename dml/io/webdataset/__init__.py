"""WebDataset shards, tar archives whose files are grouped into rows, are read and written."""

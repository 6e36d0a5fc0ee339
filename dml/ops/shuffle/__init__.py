"""These operators permute rows: in windows, by pieces of a source, over the whole input."""

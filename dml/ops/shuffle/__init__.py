"""These operators permute rows: within a window, within atoms, over the whole input."""

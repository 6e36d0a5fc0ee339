"""The memory limit is divided, measured and reported here; rows beyond it are spilled to disk."""

"""ORC files, decoded in separate worker processes."""

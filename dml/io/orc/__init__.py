"""ORC files are decoded here, in separate worker processes."""

"""The oracle computes one row at a time here: operations, IEEE arithmetic, ids, step tables."""

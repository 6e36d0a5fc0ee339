"""Row ids, random numbers keyed by row, permutations of rows, and matching of equal keys."""

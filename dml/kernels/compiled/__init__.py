"""Programs are compiled by numba: source of kernels, their cache on disk, choice of the tier."""

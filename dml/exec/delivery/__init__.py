"""Deliver to the training loop: the iterator, checkpoints, prefetching, the account of a run."""

"""One run shared among the ranks of a training."""

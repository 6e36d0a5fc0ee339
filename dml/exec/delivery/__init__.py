"""Delivery to the training loop: the iterator, its checkpoints, batches made ahead, accounts."""

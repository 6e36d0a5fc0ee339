"""Adapters present pipelines to other frameworks: PyTorch, JAX and TensorFlow.

dataset = ds.to_torch()                # a torch IterableDataset
for tensors in dataset: ...            # a dict of tensors per element
dataset.state_dict()                   # the position, for ``load_state_dict``
"""

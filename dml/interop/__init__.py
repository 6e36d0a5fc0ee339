"""Adapters present pipelines as classes of other frameworks: ``torch`` is for PyTorch.

dataset = ds.to_torch()                # a torch IterableDataset
for tensors in dataset: ...            # a dict of tensors per element
dataset.state_dict()                   # the position, for ``load_state_dict``
"""

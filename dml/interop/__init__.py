"""Adapters present pipelines as classes of other frameworks; a module imports the one it names.

dataset = ds.to_torch()                # a torch IterableDataset
for tensors in dataset: ...            # a dict of tensors per element
dataset.state_dict()                   # the position, for ``load_state_dict``
"""

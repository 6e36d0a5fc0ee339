"""One run is shared by the ranks of a training job; a run can have a process of its own.

For example::

    ranks = ds.streaming_split(4)  # four iterables, each with its share of the elements
    for batch in ranks[0]: ...
    state = ranks[0].state_dict()  # the position of all ranks at this rank's step
"""

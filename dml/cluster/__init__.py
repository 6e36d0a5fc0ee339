"""The Dask driver runs jobs on a cluster: placement of tasks, lost workers, exchanges of rows.

For example::

    ds = ds.with_options(executor="distributed", scheduler="tcp://host:8786")
    hub = met(settings)  # dask_driver.py: the connected cluster, with at least one usable worker
    feed = ClusterRun(settings)(tasks, job, tallies)  # finished partitions, in order
"""

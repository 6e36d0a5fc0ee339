"""Telemetry: events of runs are stored on disk, read as tables, and learned from for cost profiles.

Collector(root).record(event)           # stored by a thread; never blocks or fails the run
runs, operators = tables(read(root))    # Arrow tables of all runs
profile = learned(events, host_class)   # operator costs of one run, for later plans
"""

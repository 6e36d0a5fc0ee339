"""Drivers, which give tasks to workers: the caller's thread, threads, processes."""

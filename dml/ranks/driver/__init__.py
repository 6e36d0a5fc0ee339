"""A run in a driver process: the process, its handle, and the iterator in the trainer's process."""

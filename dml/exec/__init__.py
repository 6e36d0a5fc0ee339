"""Doing it: the scheduling core, work inside a worker, drivers, ordered and resumable delivery."""

"""Eviction from a store: quotas, use counts, worth of parts, pins, quarantine and sweeping."""

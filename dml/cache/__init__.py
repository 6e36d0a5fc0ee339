"""Computed rows are stored under their fingerprints, in memory and in a store that processes share.

For example::

    store = store_at(Where(root="/data/cache", namespace="default"))  # store/open_stores.py
    store.records(fingerprint)  # records of the committed parts of a cache entry, by number
    store.part(fingerprint, 0)  # the rows of part 0, or None if they are not stored
"""

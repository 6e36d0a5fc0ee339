"""The storage of entries: a folder or an object store, leases, and local copies."""

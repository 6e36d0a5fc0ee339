"""Worker processes of this host: starting them, messages, shared memory, serialization."""

"""Arrow IPC files: record batches and their sizes."""

"""Arrow IPC files are read here."""

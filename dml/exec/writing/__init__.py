"""Writing all rows of a run: to files, to tables with versions, to sinks of users."""

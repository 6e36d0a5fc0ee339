"""Functions run in parallel over any ordered flow: in slices of rows, with results in order."""

"""The command line: run, explain, fingerprint, cache and doctor for a pipeline in a file."""

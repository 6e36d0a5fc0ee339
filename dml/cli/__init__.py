"""The command line: run, explain, fingerprint and doctor for a pipeline in a file."""

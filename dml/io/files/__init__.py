"""File formats share this code: sets of files, content digests, path columns, output folders."""

"""Code shared by file formats: sets of files, their content, columns of paths, whole folders."""

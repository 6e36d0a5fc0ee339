"""Functions that start a Dataset: from files, from objects, from several datasets."""

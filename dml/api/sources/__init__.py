"""Functions here create a Dataset from files, from objects, or from several datasets."""

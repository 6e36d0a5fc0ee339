"""This folder holds the doors that start a Dataset: of files, of objects, of several others."""

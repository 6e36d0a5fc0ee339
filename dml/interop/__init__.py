"""This room connects dml to frameworks; each file needs the one that it is named after."""

"""The verbs of Dataset are defined here by family; each checks its arguments and adds a node."""

"""This folder holds the verbs that say what is computed, by family; a verb is a door to a node."""

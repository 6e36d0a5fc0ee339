"""This folder is a twin of a run: what it would take elsewhere, and what none can beat."""

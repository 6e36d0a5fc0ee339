"""This folder checks a run on samples: the plan as written against the one that was chosen."""

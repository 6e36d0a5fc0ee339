"""Open a plan as one ordered flow: its stages, the stream operators above them, nested runs."""

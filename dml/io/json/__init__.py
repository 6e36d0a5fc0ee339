"""Files of JSON lines are read here."""

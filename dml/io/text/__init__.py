"""Lines of text files are read here."""

"""CSV files are read here."""

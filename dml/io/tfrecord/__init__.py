"""TFRecord files, and the Examples in them, are read and written here."""

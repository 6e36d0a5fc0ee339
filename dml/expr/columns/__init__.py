"""Column expressions are built with ``col``, typed, and evaluated on blocks here."""

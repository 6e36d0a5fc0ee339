"""Column expressions: ``col``, the expression tree behind it, its types, its evaluation."""

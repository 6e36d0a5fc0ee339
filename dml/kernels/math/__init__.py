"""Math functions are tables of IEEE operations, with the same bits on every processor."""

# Raised when a table changes: see ``dml.kernels.math.functions``.
ARITHMETIC_VERSION = 1
# The functions that have tables, and the type codes that they have them for.
MATH_OPS = ("cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sigmoid", "sin", "tanh")
MATH_CODES = ("f4", "f8")

"""The identity of a function: a digest of its bytecode and of all else that decides its results."""

"""The identity of a function is a digest of its bytecode and of all values that it depends on."""

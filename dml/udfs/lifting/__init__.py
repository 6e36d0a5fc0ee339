"""Lifting turns row functions into expressions, by a purity proof and tracing on a symbolic row."""

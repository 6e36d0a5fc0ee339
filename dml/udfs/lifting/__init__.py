"""Lifting turns functions of rows into expressions: purity proofs, tracing on a symbolic row."""

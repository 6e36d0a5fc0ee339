"""Operators that select elements by position are defined here: take, skip, shard, splits."""

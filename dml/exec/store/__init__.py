"""This package keeps computed partitions under their names, for every process that asks again."""

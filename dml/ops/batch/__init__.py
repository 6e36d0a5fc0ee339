"""These operators make batches, windows and packs of rows, and take them apart."""

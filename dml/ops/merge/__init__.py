"""These operators combine several inputs: one after the other, side by side, in turns."""

"""Two inputs are joined by keys here, within memory and beyond it."""

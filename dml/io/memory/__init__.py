"""Objects in memory are read here: Python values, arrays, data frames, other collections."""

"""Objects in memory: Python values, arrays, data frames, collections of other libraries."""

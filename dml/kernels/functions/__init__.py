"""Functions of text, lists, dates and times, structs and tensors take and return Arrow arrays."""

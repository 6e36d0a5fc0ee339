"""Sources that read files, tables and objects, and file writers, have one folder per format.

source = read_parquet("data/*.parquet")          # a plan node; reads footers, no rows
unit = source.unit(0)                            # the first of ``source.unit_count`` row groups
blocks = source.read(unit, source.schema.names)  # an iterator: one block of rows per atom
"""

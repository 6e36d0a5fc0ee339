"""Rows in memory: schemas, blocks of columns with row ids, layouts and buffers.

schema = Schema({"x": pa.int64()})
block = Block(schema, (Vec(np.arange(3)),), RowIds.run(source_key("numbers"), 0, 3))
block.slice(1, 3).columns   # one Vec of the values 1 and 2; a view, not a copy
"""

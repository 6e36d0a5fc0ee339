"""Operators are nodes of a pipeline; each file defines one: fields, schema, facts, execution.

first = Take(Filter(source, predicate), 10)   # nodes are nested: the input is the first field
first.schema                                  # inferred from the input's schema
first.input.run(block, at)                    # a row-local operator yields blocks of one block
"""

"""Pipelines are trees of nodes, which compute column expressions over ordered flows of rows.

node = Filter(source, (col("x") > 0).value)   # the constructor checks it and derives its schema
node.schema, node.digest                      # types of the output columns, fingerprint
flow = open_input(epoch=0, position=None)     # an ``Opener``: the rows of an epoch, from the start
"""

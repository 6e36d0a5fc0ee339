"""The public Python interface is defined here: Dataset, verbs, sources, sinks, the session.

ds = dml.read_parquet("data/*.parquet").filter(dml.col("x") > 0).batch(64)
for batch in ds: ...
ds.explain("physical")
"""

"""A plan as a static Dask graph, and the functions that its tasks execute."""

"""Tables with versions, databases and chunked arrays: Delta, Iceberg, Lance, SQL, Zarr."""

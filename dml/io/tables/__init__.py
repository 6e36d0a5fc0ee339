"""Versioned tables, databases and chunked arrays are read: Delta, Iceberg, Lance, SQL, Zarr."""

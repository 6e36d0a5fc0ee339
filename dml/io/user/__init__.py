"""Sources over users' code: ``DataSource``, generators, iterators."""

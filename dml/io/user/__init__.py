"""Sources over users' code are defined here: ``DataSource``, generators, iterators."""

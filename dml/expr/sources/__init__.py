"""Where rows come from, one format to a file; the reading done here is a named edge."""

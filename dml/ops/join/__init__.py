"""Two inputs are joined by keys here, in memory or with parts on disk."""

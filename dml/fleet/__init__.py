"""Learning from it: events become stored records, records become reports and profiles."""

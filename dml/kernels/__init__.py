"""Arrays in, arrays out: the flat program that is the one meaning of expressions, and its tiers."""

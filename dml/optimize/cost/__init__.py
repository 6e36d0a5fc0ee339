"""Costs of operators are estimated from a table of priors and from measurements of earlier runs."""

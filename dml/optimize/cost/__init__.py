"""The costs of operators are estimated here, before and after they were measured."""

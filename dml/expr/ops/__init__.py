"""The user's verbs, one operator to a file."""

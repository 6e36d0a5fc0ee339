"""Searches by cost choose where stages end, which rows are cached, which prefixes are shared."""

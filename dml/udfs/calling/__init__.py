"""Calls of users' functions: rows and arrays in, typed blocks out, errors after their rows."""

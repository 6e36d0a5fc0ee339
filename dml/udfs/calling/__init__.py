"""Calls of users' functions: rows or arrays in, typed blocks out; an error follows its rows."""

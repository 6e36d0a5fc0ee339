"""Users' functions are called with rows or arrays, and their results become typed blocks."""

"""This package holds the functions of text, lists, moments and structs: Arrow arrays in and out."""

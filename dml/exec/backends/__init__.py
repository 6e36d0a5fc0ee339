"""Drivers of the core, one to a file; a driver submits and reports, it decides nothing."""

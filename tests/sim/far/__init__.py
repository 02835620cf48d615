"""Searches of all interleavings of commands on one id of the far store: tables, and what is in Redis."""

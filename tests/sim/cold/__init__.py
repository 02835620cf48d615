"""Searches of all interleavings of commands on one id of the cold store: tables, and what is in Redis."""

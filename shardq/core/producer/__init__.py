"""Producers: push tasks, and give orders by id."""

"""Loads what ``forked`` runs: all commands, and the engine with all its parts."""

from shardq.cli import app as app
from shardq.cli.app import PLACES, load

for name in PLACES:
    load(name)

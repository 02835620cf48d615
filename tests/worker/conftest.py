"""Engines of both kinds, as the tests of the engine have them."""

from __future__ import annotations

from tests.engine.conftest import consumer, engine, engines, running, servers

__all__ = ["consumer", "engine", "engines", "running", "servers"]

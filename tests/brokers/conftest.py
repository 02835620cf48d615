"""The engine and the looks of the tests of sinks."""

from __future__ import annotations

from tests.sinks.conftest import feeding

__all__ = ["feeding"]

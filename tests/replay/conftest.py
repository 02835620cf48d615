"""The servers of these tests: those of the tests of failovers, whose replicas can be cut off."""

from __future__ import annotations

from tests.failover.conftest import service

__all__ = ["service"]

"""The flavours of handlers."""

from __future__ import annotations

import pytest

from tests.worker.flavours import Flavour


@pytest.fixture(params=["function", "coroutine"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Runs a test with handlers that are functions, and with coroutine functions."""
    chosen: Flavour = request.param
    return chosen

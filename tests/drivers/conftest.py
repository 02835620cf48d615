"""``carriers``: a test that takes it runs on both drivers. ``carrier`` is one of them, open on ``url``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drivers.carriers import Carrier, Carriers


@pytest.fixture(params=["sync", "aio"])
def carriers(request: pytest.FixtureRequest) -> Iterator[Carriers]:
    made = Carriers(request.param)
    yield made
    made.end()


@pytest.fixture
def carrier(carriers: Carriers, url: str) -> Carrier:
    return carriers.opened(url)

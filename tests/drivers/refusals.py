"""Checks that opening a connection that can't work fails at once, with an error that holds no secret."""

from __future__ import annotations

import time
import traceback

import pytest

from shardq.errors import ShardqError
from tests.drivers.carriers import Carriers

RETRY_FOR_S = 60.0
"""For a fault that waiting could solve; what is final takes no part of it."""

SECRET = "wrong9"


def told_at_once(carriers: Carriers, url: str, error: type[ShardqError], *, protocol: int = 3) -> str:
    """Returns the message of the error with which opening fails, long before its timeout."""
    carrier = carriers.make(url, connect_timeout=RETRY_FOR_S, protocol=protocol)
    begun = time.monotonic()
    with pytest.raises(ShardqError) as caught:
        carrier.open()
    assert time.monotonic() - begun < RETRY_FOR_S / 2, "it was tried again and again"
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert type(caught.value) is error, caught.value
    return str(caught.value)

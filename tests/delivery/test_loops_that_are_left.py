"""A loop that ends with handlers under way, as at the end of a program: they are closed, and nothing is raised."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Generator
from typing import Any

import pytest

from shardq.delivery import runners


@pytest.mark.parametrize("closed_before", [False, True])
def test_a_handler_is_closed(closed_before: bool) -> None:
    said = []

    async def handle() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            said.append("closed")

    work = handle()
    steps: Generator[Any, Any, bool] = runners._stepped(work, contextvars.Context())
    steps.send(None)
    if closed_before:
        work.close()  # the collector closes what is left in any order
    steps.close()
    assert said == ["closed"]

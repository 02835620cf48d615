"""Handlers as functions and as coroutine functions, for one test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

from shardq import Delivery

Flavour = Literal["function", "coroutine"]

BLOCKED_S = 60.0
"""Nobody stays behind a gate for longer, whatever a test forgets."""


def handler(flavour: Flavour, function: Callable[[Delivery], Any]) -> Callable[[Delivery], Any]:
    """Returns the function, or a coroutine function that does the same."""
    if flavour == "function":
        return function

    async def coroutine(delivery: Delivery) -> Any:
        return function(delivery)

    return coroutine


class Gate:
    """A handler that waits, in every call, until it is opened."""

    def __init__(self, flavour: Flavour) -> None:
        self.begun: list[Delivery] = []
        self.ended: list[str] = []
        """How each came out: open, or cancelled."""
        self._opened = threading.Event()
        self.handler: Callable[[Delivery], Any] = self._block if flavour == "function" else self._wait

    def open(self) -> None:
        self._opened.set()

    def _block(self, delivery: Delivery) -> None:
        self.begun.append(delivery)
        self._opened.wait(BLOCKED_S)
        self.ended.append("open")

    async def _wait(self, delivery: Delivery) -> None:
        self.begun.append(delivery)
        try:
            await asyncio.to_thread(self._opened.wait, BLOCKED_S)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("open")

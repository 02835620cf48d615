"""Drives generators that are written once and used by threads and by asyncio. No I/O.

Such a generator yields its next step and is resumed with the outcome, or with its ShardqError thrown in; its return
value is the result. Conversations with servers are generators (``handshake``, ``discover``, ``replicas``), and so are
the operations of engines (``operation``). They differ in the steps that they yield.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from shardq.errors import ShardqError

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], carry_out: Callable[[S], Any], step: S | None = None) -> T:
    """Carries out one step after the other. Returns the result. ``step``: the first one, if it was taken already."""
    try:
        if step is None:
            step = next(steps)
        while True:
            try:
                outcome = carry_out(step)
            except ShardqError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


async def adrive(steps: Generator[S, Any, T], carry_out: Callable[[S], Awaitable[Any]]) -> T:
    """The same on asyncio."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = await carry_out(step)
            except ShardqError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration

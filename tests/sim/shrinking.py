"""Cuts what fails down to the parts that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def shrunk(parts: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Leaves parts out, as many as can be, while the rest still fails."""
    size = max(1, len(parts) // 2)
    while size and parts:
        at = 0
        while at < len(parts):
            fewer = parts[:at] + parts[at + size :]
            if fails(fewer):
                parts = fewer
            else:
                at += size
        size //= 2
    return parts

"""Waits until a condition is true, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FIRST_S, _LAST_S = 0.005, 0.05

_OF_ALL = 0.05
"""A pause is this much of what was waited for so far: to ask more often costs CPU, of which others have less then."""


def wait_until(predicate: Callable[[], T], sentence: str, *, timeout: float = 30.0) -> T:
    """Calls ``condition`` until its answer is true, and returns that; fails with the sentence and the last answer.

    Who gives up asks once more after the time is over: a process that stood still meanwhile asked too seldom.

    >>> wait_until(lambda: 6 * 7, "the answer is known")
    42
    """
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        last = waited > timeout
        answer = predicate()
        if answer:
            return answer
        if last:
            raise AssertionError(f"{timeout:g} s were not enough until {sentence}; the last answer: {answer!r}")
        time.sleep(min(max(_FIRST_S, waited * _OF_ALL), _LAST_S))

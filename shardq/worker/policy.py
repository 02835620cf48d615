"""What follows a failure: when to try again, and the two exceptions by which a handler decides for itself. Pure."""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass

from shardq.errors import InvalidOption
from shardq.model.checks import due_spec, reason_text


class Retry(Exception):
    """Raised by a handler: again after ``delay`` seconds (None: by the backoff). Counts as a failed attempt."""

    def __init__(self, delay: float | None = None, reason: str = "the handler asked for a retry") -> None:
        if delay is not None:
            # a wrong one is the handler's failure, here: later it would be nobody's
            due_spec(delay, None)
        self.delay = delay
        self.reason = reason_text(reason)
        super().__init__(reason)


class Bury(Exception):
    """Raised by a handler: dead at once, for ``reason``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason_text(reason)
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential, with full jitter: after the n-th failure a random delay from 0 to base·2ⁿ⁻¹, at most cap seconds.

    Full jitter spreads what failed together, so that it does not come back together.
    """

    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 <= self.base <= self.cap < float("inf"):
            raise InvalidOption(f"{self!r} is not possible; give 0 <= base <= cap, in seconds")

    def delay_s(self, attempt: int) -> float:
        """After the attempt of this number, from 1."""
        # 2 to the 60th is past any cap
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(attempt - 1, 60)))


def reason_of(exc: BaseException) -> str:
    """The last lines of the traceback."""
    return reason_text("".join(traceback.format_exception(exc)).strip())

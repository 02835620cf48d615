"""Places tasks in their windows: a task that may become due at any time in so many seconds gets a due time of its own
there. No I/O.

The place is a hash of the id, so a resend, a replacing push and every later task of the id get the same one, and the
tasks of one window are spread evenly, whoever pushes them. The formula is a part of ``lua/README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import mmh3

from shardq.core.model.checks import later

SEED = 0x57494E44
"""Not that of the buckets: the ids of one shard are spread over the whole window."""


def place_ms(id: str, window_ms: int) -> int:
    """The place of an id in its window: from 0 up to the window's length."""
    return mmh3.hash(id, SEED, signed=False) * window_ms >> 32


def spread(dues: Sequence[int], ids: Sequence[str], window_ms: int) -> list[int]:
    """The due words of tasks with these ids, at their places in windows that begin at ``dues``."""
    return [later(due, place_ms(id, window_ms)) for due, id in zip(dues, ids, strict=True)]

"""Buffers whose pushes are sent together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardq import Buffer
from shardq.core.producer import buffer as buffers


@contextmanager
def together(buffer: Buffer) -> Iterator[None]:
    """Sends what is pushed in the block together: the thread of the buffer, which is new, starts at the block's end."""
    buffer._is_started = True
    buffers._unclosed.add(buffer)
    try:
        yield
    finally:
        threading.Thread(target=buffer._run, daemon=True).start()

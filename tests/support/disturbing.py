"""Something that disturbs a server again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def again_and_again(disturb: Callable[[], object], *, pause_s: float = 0.002) -> Iterator[None]:
    """Disturbs a server during the block."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(pause_s):
            with suppress(OSError):
                disturb()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

"""Looks at an engine over and over, in a thread of its own: the main one stays free for signals and keys. Called by
``run`` and ``top``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from shardq.cli.output import going_on
from shardq.engine import Engine
from shardq.errors import ShardqError

Seen = TypeVar("Seen")

Told = Callable[[Seen | None, str], None]
"""Takes what a look has found, or None and why it failed."""


class Looker(Generic[Seen]):
    """The looks at one engine, started once and stopped once. ``told`` is called in their thread."""

    def __init__(self, engine: Engine, look: Callable[[], Seen], told: Told[Seen], every_s: float) -> None:
        self._engine = engine
        self._look = look
        self._told = told
        self._every_s = every_s
        self._due = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardq-looker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def now(self) -> None:
        """Makes the next look begin at once."""
        self._due.set()

    def stop(self) -> None:
        """Ends the thread. Closes the engine first, which ends a look that waits for a silent server."""
        self._ending.set()
        self._due.set()
        self._engine.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._due.clear()
            try:
                seen, trouble = self._look(), ""
            except ShardqError as exc:
                seen, trouble = None, str(exc)
            if self._ending.is_set():
                return
            with going_on():
                self._told(seen, trouble)
            self._due.wait(self._every_s)

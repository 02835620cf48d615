"""The replayer: carries out what is in the file of a spool, on connections of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.core.producer.packing import Packer
from shardq.errors import SpoolFault
from shardq.features.spool.commands import layers
from shardq.features.spool.file import PAGE_ROWS, SpoolFile
from shardq.features.spool.replaying import Failing, Replayed, replay

if TYPE_CHECKING:
    from shardq.engine.options import Options
    from shardq.engine.target import Target

log = logging.getLogger("shardq.spool")


def lock_of(path: Path) -> Path:
    """The file whose lock the process that replays holds."""
    return path.with_name(path.name + "-lock")


class Pace:
    """How many commands are replayed while others are held back."""

    def __init__(self) -> None:
        self._pages = 1

    def goal(self, replayed: int) -> int:
        return replayed + self._pages * PAGE_ROWS

    def adapt(self, replayed: int, added: int) -> None:
        """Doubles the pages when more than half as many commands were let in as were replayed, and halves them else."""
        self._pages = 2 * self._pages if 2 * added > replayed else max(1, self._pages // 2)


class Replayer:
    """Replays the file of a spool, on connections of its own. Whoever holds the file's lock may run it."""

    def __init__(self, file: SpoolFile, options: Options) -> None:
        self.problem = ""
        """The reason why some commands could not be replayed by the last run."""
        self.reached = False
        """True if some shards may take commands, as far as the last run has seen."""
        self.replayed = 0
        self.failed = 0
        self._file = file
        self._options = options
        self._packer = Packer(options.codec, max_payload=options.max_payload)
        self._target: Target | None = None
        self._unrecorded: list[Replayed] = []
        """Commands that were carried out, and could not be noted in the file as it broke at that moment. They must not
        be replayed again.
        """

    def run(self, stopping: Callable[[], bool], *, timeout: float) -> bool:
        """Replays each command once that the shards take now, from the first on, until it is told to stop: that is
        asked before each page but the first. Returns False if some had to stay. Raises when no server can be
        reached. ``timeout`` bounds each trip.

        Before each page it writes the file, and sends nothing when that fails: what can't be noted would be carried out
        again by the next process, and twice once Redis has forgotten it.
        """
        from shardq.engine.target import Target

        failing = Failing()
        self.problem, self.reached = "", False
        while self._unrecorded:
            self._file.finish(self._unrecorded[0].done, self._unrecorded[0].reasons)
            self._unrecorded.pop(0)
        after = 0
        while (page := self._file.page(after)) and not (after and stopping()):
            after = page[-1].seq
            self._file.check()
            if self._target is None:
                self._target = Target(self._options)
            for layer in layers(page):
                result = self._target.run(
                    lambda cache, layer=layer: replay(cache, self._packer, layer, failing),  # type: ignore[misc]
                    timeout=timeout,
                )
                self._record(result)
            if failing.errors:
                self.problem = str(next(iter(failing.errors.values())))
        self.reached = not failing.all_fail
        return not self.problem

    def _record(self, result: Replayed) -> None:
        """Notes what was carried out, before anything else is sent on the same ids."""
        if not result.done and not result.failed:
            return
        self._unrecorded.append(result)
        try:
            self._file.finish(result.done, result.reasons)
        except SpoolFault as exc:
            if not result.failed:
                raise
            # Putting aside may need a page that a full disk has not. What is refused stays in its place, is refused
            # again, and is put aside once other commands have left room.
            result.failed = []
            self._file.finish(result.done, [])
            self.problem = str(exc)
        self._unrecorded.pop()
        self.replayed += len(result.done)
        self.failed += len(result.failed)
        for seq, reason in result.reasons:
            log.error("command %d of the spool %s was refused, and put aside: %s", seq, self._file.path, reason)

    def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()

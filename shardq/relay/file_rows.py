"""The commands of a spool's file, as a mover takes them. The process that holds the lock beside the file may use it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from shardq.errors import ShardqError, SpoolFault
from shardq.relay import file as files
from shardq.relay.file import SpoolFile
from shardq.relay.row import MEMORY_MS, Numbered
from shardq.relay.store import Head, Store

log: logging.Logger = logging.getLogger("shardq.spool")


class FileRows(Store):
    """The rows of one file."""

    memory_ms: int = MEMORY_MS
    send_s: float | None = None  # the lock is the kernel's: it stays with a process that stands still

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._page: dict[int, Numbered] = {}
        self._sent_until = 0
        self._noted_until: int | None = None  # the same as the file has it

    @property
    def batch(self) -> int:
        return files.PAGE_ROWS

    @contextmanager
    def turn(self, deadline: float = 0.0) -> Iterator[bool]:
        self._page = {}  # another process may have moved these meanwhile
        yield True
        if self._noted_until not in (None, self._sent_until):
            self._note()  # for the other processes

    def page(self, after: int) -> Sequence[Head]:
        page = self._file.page(after)
        self._page = {row.seq: row for row in page}
        return [Head(row.seq, row.command.id, 0, row.command.size) for row in page]

    def sent(self, until: int) -> int:
        self._sent_until = until
        return until

    def claim(self, seqs: Collection[int], memory: str) -> list[Numbered]:
        """Writes the file, and sends nothing if that fails: what can't be noted would be carried out again by the next
        process, and twice once Redis has forgotten it.
        """
        self._note()
        if self._page.keys() >= set(seqs):
            return [self._page[seq] for seq in seqs]
        return self._file.read(list(seqs))

    def _note(self) -> None:
        self._file.check(self._sent_until)
        self._noted_until = self._sent_until

    def remove(self, seqs: Collection[int]) -> None:
        self._file.finish(list(seqs), [])
        self.moved += len(seqs)

    def refused(self, rows: Sequence[tuple[Numbered, ShardqError]]) -> set[int]:
        """Moves refused commands to those that an operator sees, before anything else is sent on the same ids."""
        reasons = [(row.seq, f"{type(error).__name__}: {error}") for row, error in rows]
        try:
            self._file.finish([], reasons)
        except SpoolFault as exc:
            # It may need a page that a full disk has not. What is refused stays in its place, is refused again, and is
            # put aside once other commands have left room.
            self.problem: str = str(exc)
            return set()
        self.problem = ""
        self.failed += len(rows)
        for seq, reason in reasons:
            log.error("command %d of the spool %s was refused, and put aside: %s", seq, self._file.path, reason)
        return {seq for seq, _ in reasons}

    def present(self, seqs: Collection[int]) -> Collection[int]:
        return [row.seq for row in self._file.read(list(seqs))]

"""The journal: the calls of the last seconds that a server acknowledged, by the node that did. No I/O.

Drivers tell it of every answer (``Routing.result``). A note is the call's bytes as they were sent, with the time and
the answer: one append for each call, however many tasks it has. ``Replayer`` removes what can't be lost any more.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shardq.core.calls.request import Call, Command
from shardq.core.model.printable import quoted
from shardq.core.model.task import Outcome
from shardq.errors import InvalidOption

DEFAULT_BYTES = 64 << 20  # some 300,000 tasks of 100 bytes: a few seconds of a process that does nothing but push
MIN_BYTES = 1 << 20  # a call has up to that

MAX_SECONDS = 3600

OVERHEAD = 200  # the bytes of a note beside its call

PUSHES = ("push", "push_unique")
BY_ID = ("cancel", "reschedule")
NOTED = frozenset((*PUSHES, *BY_ID))

_NOTED_OUTCOMES = {
    # Gone, or unknown: what a lost push of ours had stored must not come back after its cancel.
    "cancel": (Outcome.CANCELLED, Outcome.GONE, Outcome.UNKNOWN),
    "reschedule": (Outcome.MOVED,),
}


def check_replay(seconds: float | None, most_bytes: int) -> None:
    """Checks the options ``replay`` and ``replay_bytes``. Raises InvalidOption."""
    given: object = seconds
    if given is not None and (
        isinstance(given, bool) or not isinstance(given, int | float) or not 0.1 <= given <= MAX_SECONDS
    ):
        raise InvalidOption(
            f"replay={quoted(seconds)} is not possible; give the seconds that are sent again after a failover, from "
            "0.1 to "
            f"{MAX_SECONDS}, or None"
        )
    given = most_bytes
    if not isinstance(given, int) or isinstance(given, bool) or given < MIN_BYTES:
        raise InvalidOption(f"replay_bytes={quoted(most_bytes)} is not possible; give bytes, {MIN_BYTES:,} or more")


class Note(NamedTuple):
    """One acknowledged call."""

    at: float  # the time of its answer, by time.monotonic
    sent: float  # a time before it was sent
    script: str
    slot: int
    packed: bytes  # the call as it was sent
    answer: Any  # the answers of push_unique, unless all are pushed; the outcome of a command by id; else None

    @property
    def size(self) -> int:
        return len(self.packed) + OVERHEAD


@dataclass(slots=True)
class _Notes:
    """The notes of one node."""

    notes: deque[Note] = field(default_factory=deque)
    bytes: int = 0


class Journal:
    """The notes of one engine. Thread-safe."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self.seconds = seconds
        self.most_bytes = most_bytes
        self.bytes: int = 0
        self.dropped: int = 0  # the calls that had to go early, because the notes would have taken more than most_bytes
        self.reach: float | None = None  # the seconds that the notes went back when the last of those was dropped
        self.filled: Callable[[], object] = lambda: None
        """Called for the first note after none: there is something to look after."""
        self._nodes: defaultdict[str, _Notes] = defaultdict(_Notes)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(len(node.notes) for node in list(self._nodes.values()))

    def note(self, call: Command[Any], result: Any, *, packed: bytes, sent: float, node: str) -> None:
        """Notes a call that the node has answered, if it is one that is replayed and has changed something."""
        if not isinstance(call, Call) or call.script.name not in NOTED:
            return
        name, answer = call.script.name, None
        if name == "push":
            if result:  # collided: nothing was stored
                return
        elif name == "push_unique":
            # Without answers, everything is stored: the form that is sent after a lost answer.
            if result.count("pushed") != len(result):
                answer = result
        elif result in _NOTED_OUTCOMES[name]:
            answer = result
        else:
            return
        with self._lock:
            first = not self.bytes
            # The time in the lock: notes of a node are in the order of their times.
            noted = Note(time.monotonic(), sent, name, call.slot, packed, answer)
            self._nodes[node].notes.append(noted)
            self._grow(node, noted.size)
        if first:
            self.filled()

    def _grow(self, node: str, size: int) -> None:
        """Counts the bytes of notes that were added. While they are too many, drops the oldest note of the node with
        the most: a node that is failing over gets no new ones, and its old ones are needed.
        """
        self._nodes[node].bytes += size
        self.bytes += size
        while self.bytes > self.most_bytes:
            most = max(self._nodes.values(), key=lambda notes: notes.bytes)
            self.reach = time.monotonic() - self._remove_first(most).at
            self.dropped += 1

    def _remove_first(self, notes: _Notes) -> Note:
        note = notes.notes.popleft()
        notes.bytes -= note.size
        self.bytes -= note.size
        return note

    def nodes(self) -> list[str]:
        """The nodes that acknowledged what is noted."""
        with self._lock:
            return [address for address, notes in self._nodes.items() if notes.notes]

    def prune(self, node: str, before: float) -> None:
        """Removes the notes of a node from before that time."""
        with self._lock:
            notes = self._nodes.get(node)
            while notes is not None and notes.notes and notes.notes[0].at < before:
                self._remove_first(notes)

    def take(self, node: str) -> list[Note]:
        """Returns the notes of a node, and removes them."""
        with self._lock:
            notes = self._nodes.pop(node, _Notes())
            self.bytes -= notes.bytes
            return list(notes.notes)

    def put_back(self, node: str, taken: Iterable[Note]) -> None:
        """Puts notes back that were taken, before those that came meanwhile."""
        with self._lock:
            earlier = list(taken)
            self._nodes[node].notes.extendleft(reversed(earlier))
            self._grow(node, sum(note.size for note in earlier))

    def since(self, at: float, slots: set[int]) -> list[Note]:
        """The notes of all nodes since that time, on these slots, of calls that may be about an id that was pushed
        before: by id, or with ids of the caller's own.
        """
        with self._lock:
            every = [note for notes in self._nodes.values() for note in notes.notes]
        return [note for note in every if note.at >= at and note.slot in slots and note.script != "push"]


class ReplayStats(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of an engine with ``replay=``, and what it has sent again.

    >>> if replay := engine.stats().replay:
    ...     print(replay.replays, replay.replayed, replay.late, replay.dropped)
    """

    replays: int
    """Masters whose last writes were looked for on another."""
    replayed: int
    """Tasks that were missing, and were stored again."""
    cancelled: int
    """Cancels that were lost, and were carried out again."""
    late: int
    """Cancels that were lost and could not be carried out again: the task is running."""
    calls: int
    """Calls that are remembered now."""
    bytes: int
    """Bytes that they take."""
    dropped: int
    """Calls forgotten early, because more bytes were not allowed (``replay_bytes=``)."""
    reach: float | None
    """Seconds that the memory went back when a call was last forgotten early; None if none ever was."""

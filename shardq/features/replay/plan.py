"""Finds the calls that a failover has lost, and plans their replay. No I/O.

Each look at a master gives a *checkpoint*: all that it had acknowledged before was in the first so many bytes of its
replication history. A replica that is promoted names the history that it followed and how much of it it has; so does a
master that was started again from a snapshot. The latest checkpoint in that part is the *cut*: what was acknowledged
before it is there, what came after it may be lost. FLUSHALL and FLUSHDB empty a server and leave its history as it
is: a shard's meta has the word with which it was opened, and loses it with all else.

The plan goes from the notes of the journal to one wish for each id. The last command for an id wins: of a push and its
cancel only the cancel is left, of a push and a reschedule the push with the later due time. Due words and expiries that
count from the server's taking are cut by the time that has passed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hiredis import Reader

from shardq.core.calls.node_info import Lineage
from shardq.core.calls.request import Word
from shardq.core.model.record import expiring_sooner
from shardq.core.model.task import Outcome
from shardq.core.producer.packing import FRESH, UNIQUE
from shardq.features.replay.journal import Note

NOTHING_KNOWN = -math.inf


@dataclass(slots=True)
class Master:
    """A master, by its looks."""

    history: str
    checkpoints: deque[tuple[float, int]] = field(default_factory=deque)
    """The times at which it was asked, and the length of its history then."""
    opened: tuple[int, str] | None = None
    """A shard that it serves, and the word with which that was opened."""

    def seen(self, asked: float, lineage: Lineage, *, keep_s: float) -> None:
        """Notes a look."""
        self.checkpoints.append((asked, lineage.offset))
        while self.checkpoints[0][0] < asked - keep_s:
            self.checkpoints.popleft()

    @property
    def last_seen(self) -> float:
        """The time of the last look."""
        return self.checkpoints[-1][0] if self.checkpoints else NOTHING_KNOWN

    def is_emptied(self, opened: Mapping[int, str]) -> bool:
        """True if its shard is not open any more, or was opened again: FLUSHALL and FLUSHDB leave the history as it is.
        ``opened``: the words of shards at this look.
        """
        shard, word = self.opened or (-1, "")
        return opened.get(shard, word) != word

    def cut(self, lineage: Lineage, opened: Mapping[int, str]) -> float:
        """The time before which all that it acknowledged is on the server of that lineage."""
        if self.is_emptied(opened) or not self.history or lineage.earlier != self.history:
            return NOTHING_KNOWN
        within = (at for at, length in self.checkpoints if length <= lineage.earlier_length)
        return max(within, default=NOTHING_KNOWN)


@dataclass(frozen=True, slots=True)
class Loss:
    """A master whose last writes may be lost."""

    node: str
    successor: str  # the node that took over from it; itself after a restart; empty if that is not known
    cut: float
    emptied: bool = False  # its process and its history are the same

    def __str__(self) -> str:
        if self.emptied:
            return f"{self.node} was emptied"
        if self.successor == self.node:
            return f"{self.node} was restarted"
        return f"{self.successor or 'another node'} took over from {self.node}"


def loss(node: str, master: Master | None, serving: Mapping[str, Lineage], opened: Mapping[int, str]) -> Loss | None:
    """Tells what happened to a node that has acknowledged calls. None: it still has them. ``serving``: the masters that
    serve our shards now; ``opened``: the words with which shards were opened.
    """
    if (now := serving.get(node)) is not None:
        if master is None:
            return None
        if now.history != master.history:
            return Loss(node, node, master.cut(now, opened))
        return Loss(node, node, NOTHING_KNOWN, emptied=True) if master.is_emptied(opened) else None
    for successor, lineage in serving.items():
        if master is not None and master.history and lineage.earlier == master.history:
            return Loss(node, successor, master.cut(lineage, opened))
    return Loss(node, "", NOTHING_KNOWN)


CHUNK = 4000  # tasks sent at a time: what a buffer sends, and a bound of what is unpacked at once


@dataclass(slots=True)
class _Wish:
    """The state that the commands for one id leave it in."""

    push: list[Word] | None = None  # the words of push_unique, with the due time of a later reschedule
    cancelled: bool = False
    wanted: bool = False  # true if the cancel is to be sent: the node that acknowledged it was lost
    due: int | None = None  # the due word of a reschedule that is to be sent
    overrides: bool = False
    """True if the push takes the place of another task that is stored under the id: it was pushed to replace it, or the
    other was ours and is done or cancelled.
    """


@dataclass(slots=True)
class Plan:
    """The calls to send again."""

    cancels: list[str] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=dict)  # id → due word of a reschedule
    _fresh: list[Note] = field(default_factory=list)
    _wishes: dict[str, _Wish] = field(default_factory=dict)
    _now: float = 0.0

    def pushes(self) -> Iterator[tuple[list[Word], list[Word]]]:
        """Yields the words of push_unique for some tasks at a time: those that give way to what is stored under their
        id, and those that replace what is not their own.
        """
        kept: list[Word] = []
        for note in self._fresh:
            words = _tasks(note)
            elapsed_ms = _elapsed_ms(note, self._now)
            for at in range(0, len(words), FRESH):
                wish = self._wishes.get(words[at].decode())
                if wish is not None and wish.cancelled:
                    continue
                task = _aged(words[at : at + FRESH], elapsed_ms)
                if wish is not None and wish.due is not None:
                    task[1] = wish.due
                kept += (*task, "keep", 0)
            if len(kept) >= CHUNK * UNIQUE:
                yield kept, []
                kept = []
        replaced: list[Word] = []
        for wish in self._wishes.values():
            if wish.push is not None:
                (replaced if wish.overrides else kept).extend(wish.push)
            if len(kept) + len(replaced) >= CHUNK * UNIQUE:
                yield kept, replaced
                kept, replaced = [], []
        if kept or replaced:
            yield kept, replaced


def plan(lost: Sequence[Note], others: Iterable[Note], now: float) -> Plan:
    """Makes the plan for notes whose node was lost. ``others``: notes of nodes that live, about the same slots."""
    made = Plan(_now=now)
    mine = set(map(id, lost))
    for note in sorted([*lost, *others], key=lambda note: note.at):
        if note.script == "push":
            made._fresh.append(note)
        elif note.script == "push_unique":
            _note_pushes(made._wishes, note, now, lost=id(note) in mine)
        else:
            _note_command(made._wishes, note, now, lost=id(note) in mine)
    for each, wish in made._wishes.items():
        if wish.cancelled and wish.wanted:
            made.cancels.append(each)
        elif wish.due is not None and not wish.cancelled:
            made.moves[each] = wish.due
    return made


def arguments(note: Note) -> list[bytes]:
    """The arguments of the script in a call that was sent."""
    words = _words(note)
    return words[3 + int(words[2]) :]


def latest_task(note: Note) -> tuple[str, str]:
    """The key of the tasks that a call of push has stored, and the id of the one that is due last."""
    words, tasks = _words(note), _tasks(note)
    latest = max(range(0, len(tasks), FRESH), key=lambda at: abs(int(tasks[at + 1])))
    return words[4].decode(), tasks[latest].decode()


def _tasks(note: Note) -> list[bytes]:
    """The tasks of a push, which come behind their topics: id, due, record, …"""
    words = arguments(note)
    return words[4 + int(words[3]) :]


def _words(note: Note) -> list[bytes]:
    reader = Reader()
    reader.feed(note.packed)
    words: list[bytes] = reader.gets()
    if len(words) == 1:  # ASKING
        words = reader.gets()
    return words


def _note_pushes(wishes: dict[str, _Wish], note: Note, now: float, *, lost: bool) -> None:
    words = arguments(note)[5:]
    answers: Sequence[str] = note.answer or ()
    elapsed_ms = _elapsed_ms(note, now)
    for number, at in enumerate(range(0, len(words), UNIQUE)):
        answer = answers[number] if answers else "pushed"
        stored = answer in ("pushed", "replaced")
        if not stored and not answer.startswith("kept:"):
            continue
        id = words[at].decode()
        before = wishes.get(id)
        if not stored and before is not None and before.push is not None:
            continue  # it found that push of ours
        wish = wishes[id] = _Wish(overrides=stored and (before is not None or words[at + 3] == b"replace"))
        if lost:
            dedup_ms = int(words[at + 4])
            seen_ms = max(1, dedup_ms - elapsed_ms) if dedup_ms else 0
            mode = "replace" if wish.overrides else "keep"
            wish.push = [*_aged(words[at : at + 3], elapsed_ms), mode, seen_ms]


def _note_command(wishes: dict[str, _Wish], note: Note, now: float, *, lost: bool) -> None:
    words = arguments(note)
    each = words[3].decode()  # behind the bell
    wish = wishes.setdefault(each, _Wish())
    if note.script == "cancel":
        wish.push, wish.due, wish.cancelled = None, None, True
        wish.wanted |= lost and note.answer is not Outcome.GONE
        return
    due = _due(words[4], _elapsed_ms(note, now))
    if wish.push is not None:
        wish.push[1] = due
    if lost:
        wish.due = due


def _elapsed_ms(note: Note, now: float) -> int:
    return max(0, int((now - note.at) * 1000))


def _due(word: bytes, elapsed_ms: int) -> int:
    """The due word now: a delay is shorter by what has passed, an instant the same."""
    due = int(word)
    return due if due > 0 else min(0, due + elapsed_ms)


def _aged(words: Sequence[bytes], elapsed_ms: int) -> list[Any]:
    id, due, record = words
    return [id.decode(), _due(due, elapsed_ms), expiring_sooner(record, elapsed_ms)]

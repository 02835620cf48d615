"""What is sent again, from the notes of calls as a driver makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardq.core.calls import by_id
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import shard_keys
from shardq.core.model.record import JSON, encode_record
from shardq.core.model.task import Outcome
from shardq.features.replay.journal import OVERHEAD, Journal, Note
from shardq.features.replay.plan import Plan, plan
from tests.support.heads import encode_head

KEYS = shard_keys("plan", 0)
NODE = "10.0.0.1:6379"
OTHER = "10.0.0.2:6379"

RECORD = encode_record(JSON, 1)


class Notes:
    """A journal, told of calls."""

    def __init__(self) -> None:
        self.journal = Journal(10, 1 << 30)

    def add(self, call: Call[Any], result: Any, *, node: str = NODE) -> None:
        self.journal.note(call, result, packed=call.packed(), sent=0.0, node=node)

    def push(self, *tasks: tuple[str, int], node: str = NODE, record: bytes = RECORD) -> None:
        words: list[Word] = [word for id, due in tasks for word in (id, due, record)]
        self.add(by_id.push(KEYS, 1, words), [], node=node)

    def unique(self, id: str, answer: str, *, mode: str = "keep", dedup: int = 0, node: str = NODE) -> None:
        self.add(by_id.push_unique(KEYS, 1, (id, -5000, RECORD, mode, dedup)), [answer], node=node)

    def cancel(self, id: str, outcome: Outcome = Outcome.CANCELLED, *, node: str = NODE) -> None:
        self.add(by_id.cancel(KEYS, 1, id), outcome, node=node)

    def reschedule(self, id: str, due: int) -> None:
        self.add(by_id.reschedule(KEYS, 1, id, due), Outcome.MOVED)

    def plan(self, *, after_s: float = 0.0) -> Plan:
        """The plan for the loss of the node, so long after all calls."""
        lost, others = self.journal.take(NODE), self.journal.since(0.0, {KEYS.slot})
        return plan(at_once(lost), at_once(others), 100.0 + after_s)


def at_once(notes: list[Note]) -> list[Note]:
    return [note._replace(at=100.0) for note in notes]


def pushed(made: Plan) -> list[Sequence[Word]]:
    """The tasks that are pushed again, without their records; those that override others come last."""
    found: list[Sequence[Word]] = []
    for kept, overriding in made.pushes():
        for words in (kept, overriding):
            found += [(*words[at : at + 2], *words[at + 3 : at + 5]) for at in range(0, len(words), 5)]
    return found


@pytest.fixture
def notes() -> Notes:
    return Notes()


def test_delays_are_shorter_by_what_has_passed_and_instants_the_same(notes: Notes) -> None:
    notes.push(("late", -60_000), ("due", -1_000), ("now", 0), ("at", 1_900_000_000_000))
    assert pushed(notes.plan(after_s=4.0)) == [
        ("late", -56_000, "keep", 0),
        ("due", 0, "keep", 0),
        ("now", 0, "keep", 0),
        ("at", 1_900_000_000_000, "keep", 0),
    ]


def test_an_expiry_that_counts_from_the_push_is_sooner(notes: Notes) -> None:
    for expires, then in ((-60_000, -56_000), (-1_000, -1), (1_900_000_000_000, 1_900_000_000_000)):
        record = encode_record(JSON, 1, encode_head(expires=expires, nonce=7))
        notes.push(("a", 0), record=record)
        [(kept, [])] = notes.plan(after_s=4.0).pushes()
        assert kept[2] == encode_record(JSON, 1, encode_head(expires=then, nonce=7))


def test_the_last_command_for_an_id_wins(notes: Notes) -> None:
    notes.push(("kept", -1), ("cancelled", -1), ("moved", -1), ("moved, cancelled", -1))
    notes.cancel("cancelled")
    notes.reschedule("moved", 5)
    notes.reschedule("moved", 1_900_000_000_000)
    notes.reschedule("moved, cancelled", 5)
    notes.cancel("moved, cancelled")
    notes.cancel("older")
    notes.reschedule("also older", -9)
    made = notes.plan()
    assert sorted(made.cancels) == ["cancelled", "moved, cancelled", "older"]
    assert made.moves == {"moved": 1_900_000_000_000, "also older": -9}
    assert pushed(made) == [("kept", -1, "keep", 0), ("moved", 1_900_000_000_000, "keep", 0)]


def test_a_lost_push_is_not_stored_after_a_cancel_that_did_not_find_it(notes: Notes) -> None:
    notes.push(("a", -1), ("b", -1))
    notes.cancel("a", Outcome.GONE, node=OTHER)
    made = notes.plan()
    assert made.cancels == []
    assert pushed(made) == [("b", -1, "keep", 0)]


def test_ids_of_the_caller(notes: Notes) -> None:
    for answer in ("pushed", "kept:scheduled", "seen", "moving", "elsewhere"):
        notes.unique(answer, answer)
    notes.unique("replacing", "replaced", mode="replace")
    notes.unique("rejecting", "pushed", mode="reject", dedup=60_000)
    notes.cancel("again")
    notes.unique("again", "pushed")
    notes.unique("twice", "pushed", mode="replace")
    notes.unique("twice", "kept:ready")
    notes.unique("pushed after", "pushed")
    notes.unique("pushed after", "pushed", node=OTHER)
    made = notes.plan(after_s=2.0)
    assert made.cancels == []
    assert pushed(made) == [
        ("pushed", -3000, "keep", 0),
        ("kept:scheduled", -3000, "keep", 0),
        ("rejecting", -3000, "keep", 58_000),
        ("replacing", -3000, "replace", 0),
        ("again", -3000, "replace", 0),
        ("twice", -3000, "replace", 0),
    ]


def test_what_is_not_noted(notes: Notes) -> None:
    notes.add(by_id.push(KEYS, 1, ["a", 0, RECORD]), ["a"])
    notes.add(by_id.cancel(KEYS, 1, "a"), Outcome.RUNNING)
    notes.add(by_id.reschedule(KEYS, 1, "a", 0), Outcome.GONE)
    notes.add(by_id.get(KEYS, 1, "a"), None)
    assert len(notes.journal) == 0


def test_the_oldest_notes_of_the_node_with_the_most_go_first() -> None:
    journal = Journal(10, 10 * (400 + OVERHEAD))
    call = by_id.cancel(KEYS, 1, "x")
    packed = call.packed().ljust(400, b"\0")[:400]
    journal.note(call, Outcome.CANCELLED, packed=packed, sent=0.0, node=NODE)
    for _ in range(20):
        journal.note(call, Outcome.CANCELLED, packed=packed, sent=0.0, node=OTHER)
    assert (len(journal), journal.dropped) == (10, 11)
    assert journal.bytes == 10 * (400 + OVERHEAD)
    assert journal.reach is not None
    assert len(journal.take(NODE)) == 1


def test_notes_that_are_put_back_come_first() -> None:
    notes = Notes()
    notes.cancel("a")
    taken = notes.journal.take(NODE)
    assert notes.journal.bytes == 0
    notes.cancel("b")
    notes.journal.put_back(NODE, taken)
    assert [_id(note) for note in notes.journal.take(NODE)] == ["a", "b"]


def _id(note: Note) -> str:
    return note.packed.split(b"\r\n")[-6].decode()  # two words before the last


def test_only_the_first_note_wakes_the_replayer() -> None:
    notes = Notes()
    woken: list[str] = []
    notes.journal.filled = lambda: woken.append("")
    for count in (1, 2):
        notes.cancel("a")
        notes.cancel("b")
        assert len(woken) == count
        notes.journal.take(NODE)

"""The witness of a far store: its database and each shard note the same number once a minute, as those of an outbox do
(``relay.witness``). It tells when the database was restored from an earlier state: the rows that were loaded since are
back, and Redis has forgotten most of them.

The database gives a beat out before a shard has it, so a shard with a later one than the last says that the database is
the older side. What was moved since that last beat, Redis may still remember; if not, nothing is loaded any more until
an operator says what is to become of the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shardq.errors import ShardqError
from shardq.features.far import statements as sql
from shardq.features.far.rows import Owner
from shardq.features.far.store import Store
from shardq.relay.witness import AGAIN_S, BEAT_S, Answers, beats_of, stamp


class OlderFarStore(ShardqError):
    """The database of the far store was restored from an earlier state than the servers know."""


class FarWitness:
    """The beats of one loader, in its thread."""

    def __init__(self, store: Store, ask: Callable[[str, int], Answers]) -> None:
        """``ask``: asks all shards for their last beat under a name, and has them note one that is not 0."""
        self._store = store
        self._ask = ask
        self._seen = 0
        """The last beat that the database had."""
        self._next_at = 0.0

    def check(self, deadline: float) -> None:
        """Compares both sides if it is time, or if the database has gone back, and notes the next beat. Raises
        OlderFarStore.
        """
        owner = self._store.owner(deadline)
        if owner.halted:
            raise OlderFarStore(owner.halted)
        if owner.beat >= self._seen and time.monotonic() < self._next_at:
            self._seen = owner.beat
            return
        answers = self._ask(owner.identity, 0)
        errors = [each for each in answers.values() if isinstance(each, ShardqError)]
        if errors and len(errors) == len(answers):
            raise errors[0]
        highest = max((told[0] for told in answers.values() if not isinstance(told, ShardqError)), default=0)
        remembered_ms = self._store.horizon.memory_ms - self._store.horizon.margin_ms
        if highest > owner.beat and self._store.now_ms - owner.beat > remembered_ms:
            older = self._older(owner, highest)
            values = {"beat": owner.beat, "why": str(older)}
            self._store.attempt(lambda session, _: session.change(sql.HALT, values), deadline)
            self._store.owner(deadline)  # the commands of this process obey it from now on
            raise older
        self._seen, self._next_at = owner.beat, time.monotonic() + AGAIN_S
        if not errors:  # else a new beat would hide the later one of a shard that did not answer
            give_out = self._store.text(sql.GIVE_OUT)
            [(self._seen,)] = self._store.attempt(lambda session, _: session.run(give_out), deadline)
            self._ask(owner.identity, self._seen)
            self._next_at = time.monotonic() + BEAT_S

    def accept(self, deadline: float) -> None:
        """Has what is in the table loaded, whether it was loaded before or not."""
        beats = beats_of(self._ask(self._store.owner(deadline).identity, 0))
        values = {"beat": max(beats.values(), default=0)}
        self._store.attempt(lambda session, _: session.change(sql.ACCEPT, values), deadline)

    def _older(self, owner: Owner, highest: int) -> OlderFarStore:
        loaded = stamp(highest + round(1000 * owner.ahead) + 999)
        return OlderFarStore(
            f"the database {self._store.where} came back from {stamp(owner.beat)}, and Redis has seen it until "
            f"{stamp(highest + 999)}: tasks that are due before {loaded} were loaded, and would run twice, and nothing "
            f"is loaded; drop those (`shardq far drop --due-before {loaded}`), or not, and then have the others loaded "
            "(`shardq far accept`)"
        )

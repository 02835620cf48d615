"""Texts that are stored, as each process reads them: one that can't be read is told in the one way that its callers
expect. No server, so many examples cost little.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.calls import by_id
from shardq.core.calls.resharding import MovingTask
from shardq.core.fleet import report
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.topology import Topology, UnreadableTopology
from shardq.core.layout.words import id_of, number_of, raw, shown_id, text_of
from shardq.core.model.record import as_stored, decode_payload, decode_record, encoded_parts, undecoded
from shardq.errors import IncompatibleVersion, InvalidOption, PayloadNotDecodable
from shardq.features.history import LENGTH, State, rows_of
from shardq.features.listing.query import Query
from shardq.features.schedules.entry import Entry, decode_entry
from tests.fuzz.nasty import few, json_of, msgpack_of, records, texts, words
from tests.fuzz.planting import DECLARED, INTERVAL, REPORT, states

NOW_MS = 1_800_000_000_000


class Reader(NamedTuple):
    stored: st.SearchStrategy[Any]
    read: Callable[[Any], object]
    told: tuple[type[Exception], ...] = ()


def read_schedule(stored: tuple[bytes, bytes]) -> None:
    entry = decode_entry("nightly", *stored)
    if isinstance(entry, Entry):
        for following in (entry.changed(NOW_MS, paused=True), entry.renewed(NOW_MS), entry.retracted(set())):
            assert not entry.is_renewed or isinstance(entry.following(following).ahead(NOW_MS), list)
        assert entry.due(NOW_MS) >= NOW_MS
    else:
        assert entry.problem


def read_topology(stored: dict[bytes, bytes]) -> None:
    topology = Topology.from_fields(stored)
    assert Topology.from_fields(topology.to_fields()) == topology
    assert Topology.from_text(topology.to_text().encode()) == topology
    assert 0 <= topology.shard_of("mail/x") < topology.shards <= MAX_SHARDS


def read_parcel(stored: bytes) -> None:
    parcel = MovingTask("bad", stored)
    if parcel.is_readable:
        assert 0 <= parcel.target < MAX_SHARDS
        assert raw(parcel.number) == stored.partition(b"|")[0]


def read_words(stored: bytes) -> None:
    assert raw(id_of(stored)) == stored
    assert shown_id(id_of(stored)).encode().decode() == text_of(stored)
    assert isinstance(number_of(stored), int)


FIELDS = Topology(epoch=7, shards=4, priors=(2,)).to_fields()
VALUES = [msgspec.json.decode(text) for name, text in FIELDS.items() if name != b"epoch"]

READERS = {
    "a record": Reader(records(), lambda text: (undecoded(text), decode_record(text)), (PayloadNotDecodable,)),
    "the payload of a record": Reader(records(), decode_payload, (PayloadNotDecodable,)),
    "the payload of a record as it is stored": Reader(records(), as_stored, (PayloadNotDecodable,)),
    "the payload of a record for others": Reader(records(), encoded_parts, (PayloadNotDecodable,)),
    "a lease entry": Reader(words, lambda word: by_id._found(b"leased", b"7", word, b"", b"")),
    "an instant": Reader(words, lambda word: by_id._found(b"dead", word, b"", b"\xff", b"")),
    "a report": Reader(msgpack_of(REPORT), lambda text: report.decode(text)),
    "the counters of the history": Reader(
        msgpack_of({"minute": 7, "shards": {0: [1, 2]}, "workers": {"w": [1, 2]}, "dispatchers": {"d": [0, 3, 7]}}),
        lambda text: State.of((7).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text),
    ),
    "the rows of the history": Reader(st.binary(max_size=300), lambda text: rows_of(text * 20)),
    "a state of a schedule": Reader(
        st.tuples(st.sampled_from(states(NOW_MS)).flatmap(json_of), st.just(msgspec.json.encode(DECLARED))),
        read_schedule,
    ),
    "a declaration": Reader(
        st.tuples(
            st.just(msgspec.json.encode(states(NOW_MS)[1])), st.sampled_from([DECLARED, INTERVAL]).flatmap(json_of)
        ),
        read_schedule,
    ),
    "a topology": Reader(
        st.dictionaries(
            st.sampled_from(list(FIELDS)),
            st.one_of(
                words,
                st.sampled_from(VALUES).flatmap(json_of),
            ),
            max_size=3,
        ).map(FIELDS.__or__),
        read_topology,
        (UnreadableTopology, IncompatibleVersion),
    ),
    "a copy of a topology": Reader(
        json_of(msgspec.json.decode(Topology(epoch=7, shards=4).to_text())),
        Topology.from_text,
        (UnreadableTopology, IncompatibleVersion),
    ),
    "a parcel": Reader(
        st.one_of(words, st.lists(words, max_size=7).map(b"|".join), words.map(b"n1|3|due|%b|0|0|".__mod__)),
        read_parcel,
    ),
    "a cursor": Reader(texts, lambda cursor: Query.checked(everything=True).place("orders", cursor), (InvalidOption,)),
    "words": Reader(words, read_words),
}


@pytest.mark.parametrize("what", READERS)
def test_what_is_stored_is_read_or_told(what: str) -> None:
    stored, read, told = READERS[what]

    @few(60)
    @given(stored)
    def is_read_or_told(each: Any) -> None:
        with suppress(*told):
            read(each)

    is_read_or_told()


def test_what_is_good_is_read() -> None:
    """The beginnings of the strategies, unchanged."""
    assert report.decode(msgspec.msgpack.encode(REPORT)) is not None
    assert isinstance(decode_entry("n", *(msgspec.json.encode(each) for each in (states(NOW_MS)[1], DECLARED))), Entry)
    assert len(rows_of(b"\1" * LENGTH)) > 0

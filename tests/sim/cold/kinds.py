"""The commands that a search of the cold store interleaves, all on one id: an id of the caller's own in a cold topic,
one that was made for a row, or one of the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from shardq.core.layout.topology import ColdTable
from shardq.core.model.record import JSON, encode_record
from shardq.core.model.task import Receipt
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.pushing import push_one
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.cold.cold import Cold
from shardq.features.cold.ids import LAST_BUCKET, Place, bucket_of, spelled
from shardq.features.cold.loader import Loader
from shardq.features.cold.relaying import RelayedRedis
from shardq.features.cold.rows import Horizon, Row
from shardq.features.cold.storing_sync import ColdStore
from shardq.features.listing.bulk import Bulk, bulk_query
from tests.judge.model import Op
from tests.sim.cold.actors import DEADLINE, Env, SimDriver, SimStore
from tests.sim.search.kinds import TOPIC, bulk_judged, order_judged, push_judged
from tests.support.heads import encode_head

START_MS = 1_700_000_000_000
AFTER_MS, MARGIN_MS = 3_600_000, 900_000

TICK_MS = 600_000
HELD_MS: int = Horizon(AFTER_MS, MARGIN_MS).memory_ms + AFTER_MS
"""One makes a far task a near one, and two have it loaded."""

NEAR_MS, FAR_MS, FARTHER_MS = 60_000, AFTER_MS + MARGIN_MS + 300_000, 3 * AFTER_MS

WINDOW_MS = 10**9
MEMORY_MS = 600_000

OWN = "own"
MADE: str = spelled("", Place(bucket_of(START_MS + FAR_MS), 77))

RELAYED_ID: str = spelled("", Place(LAST_BUCKET + 1 + 7, 77))
"""As the outbox makes them."""

Judged = Callable[[Any], list[Op]]


@dataclass(frozen=True)
class Kind:
    """A command. ``number``: that of its place in a search, by which payloads and nonces differ."""

    name: str
    make: Callable[[Env, TopologyCache, str], Any]
    judged: Callable[[int], Judged]
    ids: Sequence[str] = (OWN, MADE, RELAYED_ID)


class _Numbers:
    def __init__(self, number: int) -> None:
        self._next = 1000 * number

    def take(self, count: int) -> range:
        self._next += count
        return range(self._next - count, self._next)


def store_of(env: Env, cache: TopologyCache) -> ColdStore:
    """The chain of stores of an engine."""
    store, driver = SimStore(env), SimDriver(env)
    store.horizon = Horizon(AFTER_MS, MARGIN_MS)
    cold = Cold("x", "the-table", None, frozenset({TOPIC}))
    cold.store, cold.table = store, ColdTable(identity="it", after=AFTER_MS / 1000, topics=(TOPIC,))
    cold._sequences = _Numbers(env.number)  # type: ignore[assignment]
    packer = Packer(JSON, max_payload=1 << 20)
    nobody: Any = None  # the table is the engine's already
    servers: Any = driver
    return ColdStore(SimRedis(packer, DEADLINE, lambda: (servers, cache)), cold, nobody)


class SimRedis(RelayedRedis):
    def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        return self.run(lambda cache: push_one(cache, self.packer, entries), deadline)


def record(number: int, id: str) -> bytes:
    return encode_record(JSON, number, encode_head(nonce=1000 + number) if id == OWN else None)


def row_of_made(number: int) -> Row:
    """The row of the made id."""
    due = START_MS + FAR_MS
    return Row(bucket_of(due), 77, due, TOPIC, None, record(number, MADE))


# ---- pushes


def _push(mode: str, delay_ms: int, window_ms: int, env: Env, cache: TopologyCache, id: str) -> Any:
    entries = Entries(ids=[id], unique=[id, -delay_ms, record(env.number, id), mode, window_ms])
    return store_of(env, cache).push_one(entries, DEADLINE)


def _relayed(env: Env, cache: TopologyCache, id: str) -> Any:
    """The push of a row of an outbox, the same for all relays."""
    words: list[Any] = [id, START_MS + FAR_MS, record(RELAYED, id), "keep", f"0-{MEMORY_MS}"]
    [answer] = store_of(env, cache).push_own(words, DEADLINE)
    if isinstance(answer, ShardqError):
        raise answer
    return Receipt.of(id, answer)


RELAYED = 90


def push(mode: str, delay_ms: int, window_ms: int = 0) -> Kind:
    name = f"push {mode} {'near' if delay_ms == NEAR_MS else 'far'}{' with a window' if window_ms else ''}"
    make = partial(_push, mode, delay_ms, window_ms)
    return Kind(name, make, partial(push_judged, mode, delay_ms, window_ms), (OWN,))


# ---- orders


def _order(kind: Verb | Literal["get"], delay_ms: int, env: Env, cache: TopologyCache, id: str) -> Any:
    store = store_of(env, cache)
    return store.get(id, JSON, DEADLINE) if kind == "get" else store.order(kind, id, -delay_ms, DEADLINE)


def order(kind: Verb | Literal["get"], delay_ms: int = 0) -> Kind:
    name = kind if not delay_ms else f"{kind} {'near' if delay_ms == NEAR_MS else 'far'}"
    return Kind(name, partial(_order, kind, delay_ms), partial(order_judged, kind, delay_ms))


def _cancel_all(env: Env, cache: TopologyCache, id: str) -> Any:
    bulk = Bulk(cache, "cancel", bulk_query("cancel", everything=True))
    store_of(env, cache).bulk(bulk, lambda _: None)
    return bulk.so_far


# ---- services


def loaded(env: Env, cache: TopologyCache, id: str, *, full: bool = False) -> None:
    """A pass of a loader, or one from the first row on."""
    store, driver = SimStore(env), SimDriver(env)
    store.horizon = Horizon(AFTER_MS, MARGIN_MS)
    loader = Loader(
        driver,  # type: ignore[arg-type]
        cache,
        store=store,
        packer=Packer(JSON, max_payload=1 << 20),
        ready=lambda: None,
        process="p",
        members=lambda: ("p",),
    )
    loader._full_at = 0.0 if full else 10 * DEADLINE
    loader.once()


def _nothing_judged(number: int) -> Judged:
    return lambda _: []


PUSHES = [
    push("keep", NEAR_MS),
    push("keep", FAR_MS),
    push("keep", FAR_MS, WINDOW_MS),
    push("replace", NEAR_MS),
    push("replace", FAR_MS),
    push("reject", FAR_MS),
    push("reject", NEAR_MS, WINDOW_MS),
]

RELAY = Kind("relay", _relayed, lambda _: push_judged("keep", FAR_MS, 0, RELAYED), (OWN, RELAYED_ID))

ORDERS = [
    order("cancel"),
    order("reschedule", NEAR_MS),
    order("reschedule", FARTHER_MS),
    order("requeue"),
    order("get"),
]

LOADER = Kind("load", loaded, _nothing_judged)
CANCEL_ALL = Kind("cancel all", _cancel_all, bulk_judged)

KINDS: Sequence[Kind] = [*PUSHES, RELAY, *ORDERS, LOADER, CANCEL_ALL]

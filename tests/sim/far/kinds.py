"""The commands that a search of the far store interleaves, all on one id: one that was made for a row, or one of the
outbox, made there or by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from shardq.core.model.ids import spell
from shardq.core.model.record import JSON, encode_record
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Unanswered
from shardq.features.far.far import Far
from shardq.features.far.loader import Loader
from shardq.features.far.relaying import FoldingStore, RelayedRedis
from shardq.features.far.rows import Horizon, Row, far_id
from shardq.features.far.store import EVER
from shardq.features.listing.bulk import Bulk, bulk_query
from shardq.relay.row import Command, Numbered
from tests.judge.model import Op
from tests.sim.far.actors import DEADLINE, Env, SimDriver, SimStore
from tests.sim.search.kinds import bulk_judged, order_judged, push_judged
from tests.support.heads import encode_head

START_MS = 1_700_000_000_000
AHEAD_MS, MARGIN_MS = 3_600_000, 900_000

TICK_MS = 600_000
HELD_MS: int = Horizon(AHEAD_MS, MARGIN_MS).memory_ms + AHEAD_MS
"""One makes a far task a near one, and two have it loaded."""

NEAR_MS, FAR_MS, FARTHER_MS = 60_000, AHEAD_MS + MARGIN_MS + 300_000, 3 * AHEAD_MS

WINDOW_MS = 10**9
MEMORY_MS = 600_000

OWN = "own"
MADE: str = far_id(spell(77 << 46))

RELAYED_ID: str = far_id(spell(78 << 46))
"""As the outbox makes them."""

Judged = Callable[[Any], list[Op]]


@dataclass(frozen=True)
class Kind:
    """A command. ``number``: that of its place in a search, by which payloads and nonces differ."""

    name: str
    make: Callable[[Env, TopologyCache, str], Any]
    judged: Callable[[int], Judged]
    ids: Sequence[str] = (OWN, MADE, RELAYED_ID)


def store_of(env: Env, cache: TopologyCache) -> FoldingStore:
    """The chain of stores of an engine, or of a relay."""
    store, driver = SimStore(env), SimDriver(env)
    store.horizon = Horizon(AHEAD_MS, MARGIN_MS)
    far = Far("x", "the-table", None)
    far.store, far.is_ours = store, True
    packer = Packer(JSON, max_payload=1 << 20)
    nobody: Any = None  # the table is the engine's already
    servers: Any = driver
    return FoldingStore(RelayedRedis(packer, DEADLINE, lambda: (servers, cache)), far, nobody)


def record(number: int, id: str) -> bytes:
    return encode_record(JSON, number, encode_head(nonce=1000 + number) if id == OWN else None)


def row_of_made(number: int) -> Row:
    """The row of the made id."""
    return Row(MADE, START_MS + FAR_MS, None, record(number, MADE))


# ---- pushes of an outbox

RELAYED = 90
"""The number of the one that is searched: its row is the same for all relays."""


def _relayed(number: int, mode: Any, delay_ms: int, window_ms: int, env: Env, cache: TopologyCache, id: str) -> Any:
    """Returns True: of a row it is not told what became of it."""
    command = Command("push", id, START_MS + delay_ms, record(number, id), mode, window_ms, memory=f"-{MEMORY_MS}")
    said = store_of(env, cache).fold([Numbered(1, command)], EVER, DEADLINE)
    if (error := said[1]) is not None:
        raise error
    return True


def _relayed_judged(number: int, mode: str, delay_ms: int, window_ms: int, place: int) -> Judged:
    def judged(result: Any) -> list[Op]:
        if result is not True:
            return push_judged(mode, delay_ms, window_ms, number)(result)
        [op] = push_judged(mode, delay_ms, window_ms, number)(Unanswered(""))
        if place >= BEGUN:  # by itself, and nothing was there
            op.outcome = "pushed"
        return [op]

    return judged


BEGUN = 20
"""Commands of a beginning have numbers from this one on."""


def relay(mode: str, delay_ms: int, window_ms: int = 0, *, number: int = RELAYED) -> Kind:
    name = f"relay {mode} {'near' if delay_ms == NEAR_MS else 'far'}{' with a window' if window_ms else ''}"
    given = (number, mode, delay_ms, window_ms)
    made = mode == "keep" and delay_ms == FAR_MS and not window_ms
    return Kind(
        name, partial(_relayed, *given), partial(_relayed_judged, *given), (OWN, RELAYED_ID) if made else (OWN,)
    )


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
    store.horizon = Horizon(AHEAD_MS, MARGIN_MS)
    loader = Loader(
        driver,  # type: ignore[arg-type]
        cache,
        store=store,
        packer=Packer(JSON, max_payload=1 << 20),
        ready=lambda: None,
        process="p",
        members=lambda: ("p",),
        has_threads=False,
    )
    loader._full_at = 0.0 if full else 10 * DEADLINE
    loader.once()


def _nothing_judged(number: int) -> Judged:
    return lambda _: []


RELAY: Kind = relay("keep", FAR_MS)

RELAYS = [
    RELAY,
    relay("keep", NEAR_MS),
    relay("keep", FAR_MS, WINDOW_MS),
    relay("replace", NEAR_MS),
    relay("replace", FAR_MS),
    relay("reject", FAR_MS),
]

ORDERS = [
    order("cancel"),
    order("reschedule", NEAR_MS),
    order("reschedule", FARTHER_MS),
    order("requeue"),
    order("get"),
]

LOADER = Kind("load", loaded, _nothing_judged)
CANCEL_ALL = Kind("cancel all", _cancel_all, bulk_judged)

KINDS: Sequence[Kind] = [*RELAYS, *ORDERS, LOADER, CANCEL_ALL]

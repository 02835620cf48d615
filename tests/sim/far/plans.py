"""All that is searched of the far store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement

from shardq.features.far import statements as sql
from tests.judge.model import Op
from tests.sim.far.kinds import (
    FAR_MS,
    FARTHER_MS,
    KINDS,
    LOADER,
    MADE,
    NEAR_MS,
    ORDERS,
    RELAY,
    RELAYED_ID,
    RELAYS,
    TICK_MS,
    Kind,
    loaded,
    order,
    relay,
    row_of_made,
)  # fmt: skip
from tests.sim.far.searching import Beginning, Budget, Search
from tests.sim.far.tables import Rows
from tests.sim.search.kinds import LIMIT

WAITS_MS = 2 * TICK_MS


def _made_row() -> Rows:
    row = row_of_made(1)
    return {(sql.TABLE, (row.id,)): (row.id, row.due, None, None, None, None, row.record, None, 0)}


def _made(name: str, *steps: Kind | int | Callable[[Search], Sequence[Op]]) -> Beginning:
    pushed = Op(
        "push", -1.001e11, -1.0009e11, outcome="pushed", number=1, delay_us=FAR_MS * 1e3, mode="keep", limit=LIMIT
    )
    return Beginning(f"a made id, {name}", MADE, _made_row, steps, [pushed])


def _moved_and_left(search: Search) -> Sequence[Op]:
    """A loader has moved its row, and died before it removed it."""
    rows = search.rows
    search.alone(loaded, 60)
    search.rows = rows
    return []


def _handled(search: Search) -> Sequence[Op]:
    """What is due is claimed and acknowledged."""
    return search.handled()


FAR, WINDOWED, NEAR = (
    relay("keep", FAR_MS, number=80), relay("keep", FAR_MS, 10**9, number=80), relay("keep", NEAR_MS, number=80),
)  # fmt: skip

OWN_BEGINNINGS: Sequence[Beginning] = [
    Beginning("gone"),
    Beginning("far", steps=[FAR]),
    Beginning("far in its window", steps=[WINDOWED]),
    Beginning("cancelled in its window", steps=[WINDOWED, order("cancel")]),
    Beginning("near in the table", steps=[FAR, TICK_MS]),
    Beginning("near in the table, in its window", steps=[WINDOWED, TICK_MS]),
    Beginning("loaded", steps=[FAR, WAITS_MS, LOADER]),
    Beginning("loaded and left", steps=[FAR, WAITS_MS, _moved_and_left]),
    Beginning("near", steps=[NEAR]),
]

MADE_BEGINNINGS: Sequence[Beginning] = [
    _made("far"),
    _made("rescheduled", order("reschedule", FARTHER_MS)),
    _made("near in the table", TICK_MS),
    _made("moved by a command", TICK_MS, order("get")),
    _made("loaded", WAITS_MS, LOADER),
]

RELAYED_BEGINNINGS: Sequence[Beginning] = [
    Beginning("of the outbox, not relayed yet", RELAYED_ID),
    Beginning("of the outbox, relayed", RELAYED_ID, steps=[RELAY]),
    Beginning("of the outbox, relayed and cancelled", RELAYED_ID, steps=[RELAY, order("cancel")]),
    Beginning("of the outbox, near in the table", RELAYED_ID, steps=[RELAY, TICK_MS // 2]),
]

HELD: Sequence[tuple[Beginning, Sequence[Kind]]] = [
    (_made("to be loaded", WAITS_MS), [LOADER, *ORDERS]),
    (_made("loaded and left", WAITS_MS, _moved_and_left), [LOADER, *ORDERS]),
    (_made("moved by a command", TICK_MS, order("get")), [LOADER, *ORDERS]),
    # Whoever looks at that row hours later moves it anew, as the page says; loaders look at once.
    (_made("handled and left", WAITS_MS, _moved_and_left, FAR_MS, _handled), [LOADER]),
]

BEGINNINGS: Sequence[Beginning] = [*OWN_BEGINNINGS, *MADE_BEGINNINGS, *RELAYED_BEGINNINGS]


def _pairs(beginning: Beginning, kinds: Sequence[Kind]) -> Iterator[tuple[Kind, Kind]]:
    """Two relays have one row: those of an id are carried out one after the other."""
    fit = [kind for kind in kinds if beginning.id in kind.ids]
    for one, other in combinations_with_replacement(fit, 2):
        if one is other or one not in RELAYS or other not in RELAYS:
            yield one, other


def two() -> Iterator[Search]:
    """Any two commands, with a crash and a lost answer."""
    for beginning in BEGINNINGS:
        for pair in _pairs(beginning, KINDS):
            yield Search(beginning, pair, Budget(1, 1))


def ticks() -> Iterator[Search]:
    """Any two, with a crash or a lost answer, while what is far comes near, or is to be loaded. A relay is followed by
    another before that.
    """
    kinds = [kind for kind in KINDS if kind not in RELAYS]
    for beginning in BEGINNINGS:
        for pair in _pairs(beginning, kinds):
            yield Search(beginning, pair, Budget(1, 0, 1))
            yield Search(beginning, pair, Budget(0, 1, 1))


def held() -> Iterator[Search]:
    """A loader and another command, with a crash and a lost answer, while both are held for hours."""
    for beginning, kinds in HELD:
        for kind in kinds:
            yield Search(beginning, (LOADER, kind), Budget(1, 1, holds=1))


GROUPS = {"far": two, "far-ticks": ticks, "far-held": held}

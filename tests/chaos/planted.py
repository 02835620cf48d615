"""Faults of the product itself, planted on purpose: the judge that says nothing of them is worth nothing.

``python -m tests.chaos planted`` carries out short rounds with each of them, until it is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.arguments import command_parser
from tests.chaos.plan import FaultKind, GroundKind, Plan, ProgramKind, drawn

if TYPE_CHECKING:
    from tests.chaos.rounds import Told

SEEDS = 8
"""Rounds in which one of them has to be found."""

CORE: tuple[ProgramKind, ...] = ("dispatch", "produce", "produce", "consume", "consume", "operate")


@dataclass(frozen=True)
class Planted:
    """``script``, ``ours``, ``theirs``: a text of a script, and what stands in its place; or ``bend``: what changes
    modules of the product.
    """

    script: str = ""
    ours: str = ""
    theirs: str = ""
    bend: Callable[[], None] | None = None
    ground: GroundKind = "aof"
    programs: tuple[ProgramKind, ...] = CORE
    only: tuple[FaultKind, ...] = ("cut", "flush scripts", "kill program")
    seconds: float = 12.0
    every_s: float = field(default=3.0)
    pause: float = 0.1
    """Longer where what is pushed has to be handled at once."""

    def plan(self, seed: int) -> Plan:
        return drawn(
            seed, self.ground, seconds=self.seconds, every_s=self.every_s, per_s=1000.0, kinds=self.programs,
            only=self.only, pause=self.pause,
        )  # fmt: skip


def _resends_as_new() -> None:
    from shardq.core.calls.request import Call

    Call.after_loss = lambda self: self  # type: ignore[method-assign]


def _waits_for_no_copies() -> None:
    from shardq.core.producer.durable import Confirming

    Confirming.wait_for_copies = lambda self, receipts: None  # type: ignore[method-assign]


def _done_whatever_is_answered() -> None:
    """Counts commands of a layer as carried out that no server took."""
    from shardq.relay import sending

    send = sending.send

    def bent(cache: Any, packer: Any, layer: Any, failing: Any, **options: Any) -> Any:
        result = yield from send(cache, packer, layer, failing, **options)
        result.done = [each.seq for each in layer]
        return result

    sending.send = bent


PLANTED: dict[str, Planted] = {
    "tasks are dispatched early": Planted(
        "dispatch", "string.format('%.0f', now_ms), 'LIMIT'", "string.format('%.0f', now_ms + 300), 'LIMIT'",
        programs=("dispatch", "flow", "drain"), seconds=5.0,
    ),
    "any token settles": Planted(
        "settle", "present == token then return true", "present ~= '' then return true",
        programs=(*CORE, "consume", "consume"), only=("freeze program",), seconds=25.0,
    ),
    "an ack keeps its record": Planted("settle", "redis.call('HDEL', KEYS[2], unpack(ids, 1, good))", "", seconds=8.0),
    "a reschedule of a ready task counts no ghost": Planted(
        "reschedule",
        "if ghosts then",
        "if false then",
        programs=("dispatch", "produce", "consume", "consume", "consume", *("operate",) * 6),
        seconds=25.0,
        pause=0.6,
    ),
    "a dedup window is forgotten": Planted("push_unique", "if dedup > 0 then", "if dedup > 1e15 then"),
    "a task that moves to another shard stays, too": Planted(
        "take", "redis.call('HDEL', KEYS[2], unpack(taken))", "", programs=(*CORE, "administer", "administer")
    ),
    "a list gets a payload twice": Planted(
        "forward", "refused = redis.pcall('RPUSH', KEYS[8], unpack(payloads))",
        "redis.pcall('RPUSH', KEYS[8], payloads[1]) refused = redis.pcall('RPUSH', KEYS[8], unpack(payloads))",
        programs=("dispatch", "send"), seconds=5.0,
    ),
    "a lease that ran out counts no attempt": Planted(
        "dispatch", "    lapses = lapses + 1\n", "", programs=(*CORE, "consume"), seconds=20.0
    ),
    "a push whose answer was lost is sent as a new one": Planted(
        bend=_resends_as_new, programs=("dispatch", "flow", "drain", "produce"), only=("cut", "cut in a reply"),
        every_s=0.5,
    ),
    "a durable push waits for no replica": Planted(
        bend=_waits_for_no_copies, ground="sentinel", programs=("dispatch", "produce", "produce", "produce"),
        only=("fail over",), seconds=20.0, every_s=8.0,
    ),
    "a relay removes rows that it could not move": Planted(
        bend=_done_whatever_is_answered, programs=("dispatch", "outbox", "outbox", "relay"), only=("fill memory",),
        every_s=2.0,
    ),
    "a spool forgets what it could not replay": Planted(
        bend=_done_whatever_is_answered, programs=("dispatch", "spool", "spool", "consume"), only=("part",),
        seconds=25.0, every_s=4.0,
    ),
}  # fmt: skip
"""What is wrong → how."""


def plant(name: str) -> None:
    """Plants one in this process, before anything of the product has run."""
    if not name:
        return
    planted = PLANTED[name]
    if planted.bend is not None:
        planted.bend()
        return
    from shardq.core.scripts import Script, script

    ours = script(planted.script)
    if planted.ours not in ours.text:
        raise LookupError(f"{planted.script} has no {planted.ours!r} any more: plant {name!r} in another way")
    theirs = Script.of(ours.name, ours.text.replace(planted.ours, planted.theirs))
    for part in ("text", "sha"):  # it is in the constants of other modules already
        object.__setattr__(ours, part, getattr(theirs, part))


def found(name: str, *, is_planted: bool = True, seeds: Sequence[int] = range(1, SEEDS + 1)) -> Iterator[Told]:
    """Rounds with this one planted, up to the first in which it was found."""
    from tests.chaos.rounds import carried_out, put_away

    for seed in seeds:
        told = carried_out(PLANTED[name].plan(seed), planted=name if is_planted else "")
        put_away(told, keep=False)
        yield told
        if told.wrong:
            return


def main(arguments: Sequence[str]) -> int:
    about = "Plants faults in the product, one at a time, and looks if they are found: 1 if one is not."
    listed = "faults:\n" + "\n".join(f"  {name}" for name in PLANTED)
    parser = command_parser("tests.chaos planted", about, listed)
    parser.add_argument("name", nargs="*", choices=[[], *PLANTED], help="these only; default: all")
    parser.add_argument("--control", action="store_true", help="rounds with nothing planted: 1 if anything is found")
    options = parser.parse_args(arguments)
    names = options.name or list(PLANTED)
    count = 0
    for name in names:
        began, rounds, wrong = time.monotonic(), 0, ""
        for told in found(name, is_planted=not options.control, seeds=range(1, 2 if options.control else SEEDS + 1)):
            rounds += 1
            wrong = ([*told.verdict.violations, *told.wrong] or [""])[0]
        count += bool(wrong)
        said = wrong.partition("\n")[0][:160] or f"nothing in {rounds} rounds"
        word = "found" if wrong else "nothing" if options.control else "MISSED"
        print(f"{word:7} {name} ({rounds} rounds, {time.monotonic() - began:.0f} s): {said}", flush=True)
    if options.control:
        print(f"with nothing planted something was found in {count} of {len(names)} rounds")
        return 1 if count else 0
    print(f"{count} of {len(names)} planted faults are found")
    return 0 if count == len(names) else 1

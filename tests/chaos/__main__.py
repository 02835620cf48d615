"""``python -m tests.chaos`` breaks real servers and programs on purpose, and judges what became of every task."""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.arguments import add_json, command_parser
from bench.chaos import Chaos
from tests.chaos import planted
from tests.chaos.grounds.ground import faketime
from tests.chaos.plan import GROUND_KINDS, KINDS, FaultKind, GroundKind, Plan, drawn
from tests.chaos.record import lines
from tests.chaos.rounds import CASE, Told
from tests.chaos.run import Run
from tests.chaos.soaking import soak
from tests.judge.verdict import verdict_on

_ABOUT = """\
Rounds of a minute or so: servers and programs are started, programs push, handle, cancel, forward, schedule and resize,
while faults are done to all of them. Then all is mended and handled, and each call of each task is judged by a
sequential model. It exits with 1 when something must not be, and leaves the files of that round.
"""

_EXAMPLE = """\
examples:
  python -m tests.chaos --minutes 5                          rounds on one server, on Sentinel, on a cluster, in turns
  python -m tests.chaos --on cluster --seed 17 --rounds 1    one round again: the same programs and faults
  python -m tests.chaos --faults 1000 --tasks 10000000 --json bench/report/chaos.json     until it were so many
  python -m tests.chaos --kind split --kind 'fail over' --on sentinel                     these faults only
  python -m tests.chaos --list                               the kinds of faults, and what this machine lacks
  python -m tests.chaos planted                              twelve faults of the product itself: each must be found
  python -m tests.chaos judge FOLDER                         what a round left that went wrong, judged again
  python -m tests.chaos soak --hours 2 --json bench/report/soak.json
"""


FAULTS_S = 60.0
"""The time of a round in which faults are done."""

SHOWN = 4
"""Violations of a round that are told in full."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 all is well, 1 something is not, 2 not understood, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"planted": planted.main, "soak": soak.main, "judge": _judge}
    try:
        if words and words[0] in commands:
            return commands[words[0]](words[1:])
        return _rounds(_parser().parse_args(words))
    except KeyboardInterrupt:
        print("interrupted; all programs and servers are stopped", file=sys.stderr)
        return 130


def _judge(words: Sequence[str]) -> int:
    parser = command_parser("tests.chaos judge", "Judges a round again that went wrong.", "")
    parser.add_argument("folder", type=Path, help="that with its files")
    folder: Path = parser.parse_args(words).folder
    verdict = verdict_on(*pickle.loads((folder / CASE).read_bytes()))
    print(f"{verdict}\n{verdict.undecided} ids undecided")
    return 1 if verdict.violations else 0


def _rounds(options: argparse.Namespace) -> int:
    if options.list:
        for name, kind in KINDS.items():
            lacks = f"  (left out here: {lack})" if (lack := lacking(name)) else ""
            print(f"{name:20} {', '.join(kind.grounds):22} {kind.what}{lacks}")
        return 0
    without = [name for name in KINDS if lacking(name)]
    for name in without:
        print(f"left out: {name}: {lacking(name)}")

    def plan_of(seed: int, ground: GroundKind) -> Plan:
        return drawn(
            seed, ground, seconds=FAULTS_S, every_s=options.every, per_s=options.rate, only=options.kind,
            without=without,
        )  # fmt: skip

    def is_enough(record: Chaos, rounds: int, seconds: float) -> bool:
        if options.rounds:
            return rounds >= int(options.rounds)
        if options.faults or options.tasks:
            return sum(record.faults.values()) >= int(options.faults) and record.tasks >= int(options.tasks)
        return seconds > float(options.minutes) * 60

    grounds = GROUND_KINDS if options.on == "all" else (options.on,)
    record = Run(plan_of, grounds, is_enough, file=options.json, go_on=options.go_on, show=show).carry_out(options.seed)
    print("\n".join(lines(record)))
    return 1 if record.violations else 0


def show(told: Told) -> None:
    late = ", ".join(f"{name} {value:.2f} s" for name, value in told.late_s.items())
    took = ", ".join(f"{name} {value:g}" for name, value in told.seconds.items())
    print(
        f"  round {told.plan.seed}: {sum(told.faults.values())} faults done, {told.tasks:,} tasks, "
        f"{told.verdict.undecided} ids undecided; claimed late by {late or '-'}; "
        f"{told.waited.handled} of a quiet topic by {told.waited.longest_s:.2f} s without a reason; seconds: {took}",
        flush=True,
    )
    for text in told.broken:
        print(f"  servers: {text.splitlines()[0]} … {text.splitlines()[-1]}"[:300])
    for text in told.wrong[:SHOWN]:
        print(f"\n{text[:2000]}\n")
    if len(told.wrong) > SHOWN:
        print(f"and {len(told.wrong) - SHOWN:,} more")
    if told.folder.exists():
        print(f"its files are in {told.folder}")
    if told.wrong:
        print(f"again: python -m tests.chaos --seed {told.plan.seed} --on {told.plan.ground} --rounds 1")


def lacking(name: FaultKind) -> str:
    """Why a fault can't be done on this machine; empty if it can."""
    needs = KINDS[name].needs
    if needs == "faketime" and faketime() is None:
        return "there is no libfaketime"
    if needs == "prlimit" and not Path("/proc/self/limits").exists():
        return "the limits of another process can be set on Linux only"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("tests.chaos", _ABOUT, _EXAMPLE)
    parser.add_argument("--seed", type=int, default=1, help="the number of the first round (default: %(default)s)")
    parser.add_argument(
        "--on", choices=(*GROUND_KINDS, "all"), default="all", help="the servers (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=0, help="so many rounds, however long they take")
    parser.add_argument("--faults", type=int, default=0, help="until it were so many faults, however long they take")
    parser.add_argument("--tasks", type=int, default=0, help="and so many tasks")
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two faults (default: %(default)g)")
    parser.add_argument("--rate", type=float, default=4000.0, help="bulk tasks pushed a second (default: %(default)g)")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[], help="only this kind of fault; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="the kinds of faults")
    parser.add_argument("--go-on", action="store_true", help="also after a round that went wrong")
    add_json(parser, "a record of all rounds, written after each of them")
    return parser


if __name__ == "__main__":
    sys.exit(main())

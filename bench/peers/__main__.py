"""``python -m bench.peers`` gives every peer its turn, round by round, and prints the table of results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import machine
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.peers import homes, outcome
from bench.peers.adapter import Adapter
from bench.peers.catalogue import ADAPTERS
from bench.peers.homes import Home, Unavailable
from bench.peers.outcome import Outcome, Peer
from bench.peers.turns import USUAL, Turn
from bench.table import Progress
from cluster import entry

ROUNDS = 3

_ABOUT = """\
Compares shardq with others doing the same work: scheduling tasks, handling those that are due at one instant, handling
single ones in time, keeping them, idling. It starts its own servers on this machine, and peers take turns on them.
All rounds take about a quarter of an hour, a single one about half of that.
"""

_EXAMPLE = """\
Each peer gets an environment of its own in .peers, made at its first turn; one that can't be installed is named in
the result, with the reason. beanstalkd and node are not installed: they must be on the PATH.

columns:
  scheduled/s    tasks with a due time, pushed by one process through the fastest API the peer has
  drained/s      no-op tasks that are all due at one instant, by one worker process: from that instant to the last
  late p50, p99  from due to the first line of the handler, tasks at random instants, nothing else going on
  bytes/task     memory of the server for a pending task of 100 bytes (beanstalkd: resident memory of the process)
  idle cmds/s    commands the server executes, those in scripts included, while a worker and a pusher do nothing

example:
  python -m bench.peers --only shardq beanstalkd --rounds 1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 2 not understood or not possible, 130 interrupted."""
    options = _parser().parse_args(arguments)
    cores = Cores.divided()
    known = Outcome(machine.told(options.server, topology="one server on loopback TCP for each turn", cores=cores), [])
    try:
        _run([each for each in ADAPTERS if not options.only or each.name in options.only], options, cores, known)
    finally:
        # results before a failure are shown too
        if known.peers:
            outcome.show(known)
        if options.json is not None:
            known.save(options.json)
    return 0


def _run(adapters: Sequence[Adapter], options: argparse.Namespace, cores: Cores, known: Outcome) -> None:
    found: list[tuple[Adapter, Home, Peer]] = []
    for adapter in adapters:
        try:
            home = homes.home(adapter, say=_say)
            known.peers.append(Peer(adapter.name, home.version, adapter.how))
            found.append((adapter, home, known.peers[-1]))
        except Unavailable as exc:
            known.peers.append(Peer(adapter.name, "", adapter.how, problem=str(exc)))
    # clients are pinned after installing, which may use every core
    cores.pin_clients()
    with Progress() as progress:
        for round in range(1, options.rounds + 1):
            for position, (adapter, home, peer) in enumerate(found, 1):
                progress.enter(f"round {round} of {options.rounds}, {adapter.name}", position, len(found))
                turn = Turn(
                    adapter,
                    home,
                    options.server,
                    cores,
                    sizes=USUAL,
                    whole=not peer.has_lateness,
                    say=progress.say,
                )
                peer.add(turn.take())


def _say(text: str) -> None:
    print(f"{text} …", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("bench.peers", _ABOUT, _EXAMPLE)
    names = [adapter.name for adapter in ADAPTERS]
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        choices=names,
        metavar="NAME",
        help=f"only these: {', '.join(names)}",
    )
    parser.add_argument("--rounds", type=_positive, default=ROUNDS, help="turns of each peer (default: %(default)s)")
    add_server(parser)
    add_json(parser, "write the result there too")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds; give 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(entry.run(main))

"""``python -m bench.guard`` finds out whether something became slower, by ratios that hold on any machine of the kind.

A ratio is a figure of the engine divided by one of the same run: the C client with the same script, redis-py's SET, a
PING, a bare sorted set and hash, or the engine itself with less to do. Times are compared with nothing. ``--learn``
runs the set several times and writes the usual ratios and their spread to the baseline; without it, one run is compared
with the baseline.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench import machine, ratios
from bench.arguments import add_server, command_parser
from bench.cores import Cores
from bench.stand import standing
from bench.table import Progress, of_numbers, output
from cluster import entry

BASELINE = Path(__file__).parent / "baseline.json"

LEAST_TOLERANCE, LEAST_OF_EXACT = 0.1, 0.02
"""The least tolerance, in parts of the usual value: seven runs do not show everything a machine does.
``LEAST_OF_EXACT`` is for ratios that hardly differ from run to run."""

SPREADS = 5.0
"""The tolerance in median distances from the median. One odd run among seven does not change the median distance, but
it would widen the range of all runs so far that nothing ever falls."""

TRIES = 3
"""The most runs. Ratios that fell are measured again before they count, and the best counts: a busy neighbour on the
machine passes, a slower engine stays slow."""


class Usual(msgspec.Struct, frozen=True):
    """The values of one ratio in the runs of ``--learn``."""

    runs: list[float]
    tolerance: float = LEAST_TOLERANCE
    """The least tolerance, in parts of the median."""

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def floor(self) -> float:
        """A ratio below this has fallen.

        >>> Usual([1.0, 1.0, 1.0, 0.2]).floor, round(Usual([1.0, 0.95, 1.05]).floor, 3)
        (0.9, 0.75)
        """
        usual = self.median
        spread = median(abs(run - usual) for run in self.runs)
        return max(0.0, usual - max(SPREADS * spread, self.tolerance * usual))


class Baseline(msgspec.Struct):
    """The usual ratios by kind of server and name."""

    facts: dict[str, dict[str, str]] = {}
    """The machine of each kind's runs."""
    usual: dict[str, dict[str, Usual]] = {}


class Verdict(msgspec.Struct, frozen=True):
    name: str
    usual: Usual | None
    found: float | None

    @property
    def word(self) -> str:
        if self.usual is None:
            return "new"
        if self.found is None:
            return "not measured"
        return "FELL" if self.found < self.usual.floor else "ok"


BOUNDS = {name: Usual([1.0], 0.0) for name in ratios.BOUNDED}
"""Counts have a bound in place of usual values."""


def compared(usual: dict[str, Usual], found: dict[str, float]) -> list[Verdict]:
    """Returns a verdict for every ratio that is known or was found."""
    names = [*usual, *(name for name in found if name not in usual)]
    return [Verdict(name, usual.get(name), found.get(name)) for name in names]


def fallen(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.name for verdict in verdicts if verdict.word == "FELL"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 nothing fell, 1 something fell or nothing could be compared, 2 not understood."""
    options = _parser().parse_args(arguments)
    if not chosen(options.only):
        print(
            f"error: no ratio has {' or '.join(map(repr, options.only))} in its name; there are: "
            f"{'; '.join(ratios.NAMES)}",
            file=sys.stderr,
        )
        return 2
    cores = Cores.divided()
    cores.pin_clients()
    baseline = Baseline()
    if options.baseline.exists():
        baseline = msgspec.json.decode(options.baseline.read_bytes(), type=Baseline)
    return (_learn if options.learn else _compare)(options, cores, baseline)


def _learn(options: argparse.Namespace, cores: Cores, baseline: Baseline) -> int:
    only = [name for name in chosen(options.only) if name not in BOUNDS]
    runs = []
    for number in range(options.learn):
        runs.append(_measured(options.server, cores, f"run {number + 1} of {options.learn}", only))
    known = baseline.usual.get(options.server, {})
    if not options.add:
        known = {name: usual for name, usual in known.items() if name in ratios.NAMES and name not in only}
    usual = {}
    for name in dict.fromkeys([*known, *(name for run in runs for name in run)]):
        earlier = known[name].runs if name in known else []
        usual[name] = Usual(
            [*earlier, *(round(run[name], 4) for run in runs if name in run)],
            LEAST_OF_EXACT if name in ratios.EXACT else LEAST_TOLERANCE,
        )
    baseline.usual[options.server] = usual
    if set(only) == set(ratios.NAMES) - set(BOUNDS):
        on = "one server on loopback TCP"
        baseline.facts[options.server] = machine.facts(options.server, topology=on, cores=cores)
    options.baseline.write_bytes(msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n")
    _show(compared(usual, {}), learnt=True)
    return 0


def _compare(options: argparse.Namespace, cores: Cores, baseline: Baseline) -> int:
    usual = baseline.usual.get(options.server)
    if usual is None:
        print(
            f"error: {options.baseline} has no values for {options.server}; learn them first with: "
            f"python -m bench.guard --server {options.server} --learn 7",
            file=sys.stderr,
        )
        return 1
    only = chosen(options.only)
    usual = {name: runs for name, runs in {**usual, **BOUNDS}.items() if name in only}
    found = _measured(options.server, cores, "", only)
    tries = 1
    while tries < TRIES and (fell := fallen(compared(usual, found))):
        again = _measured(options.server, cores, f"again: {', '.join(fell)}", fell)
        found = {name: max(value, again.get(name, value)) for name, value in found.items()}
        tries += 1
    verdicts = compared(usual, found)
    _show(verdicts, learnt=False)
    fell = fallen(verdicts)
    if fell:
        print(f"fell below their floors: {', '.join(fell)}", file=sys.stderr)
    return 1 if fell or not any(verdict.word == "ok" for verdict in verdicts) else 0


def chosen(only: Sequence[str]) -> list[str]:
    """The ratios whose names contain one of these texts; all without any."""
    return [name for name in ratios.NAMES if not only or any(text.casefold() in name.casefold() for text in only)]


def _measured(kind: str, cores: Cores, which: str, only: Sequence[str]) -> dict[str, float]:
    with Progress() as progress:
        progress.enter(f"guard {which}".strip(), 1, 1)
        with standing(kind, cores=cores, scale="usual", say=progress.say) as stand:
            return dict(ratios.measured(stand, only))


def _show(verdicts: Sequence[Verdict], *, learnt: bool) -> None:
    table = of_numbers("ratio", ("usual", "lowest", "highest", "floor") if learnt else ("usual", "floor", "found"))
    if not learnt:
        table.add_column("")
    for verdict in verdicts:
        usual = verdict.usual
        cells: list[float | None] = [None, None, verdict.found]
        if usual is not None:
            cells[:2] = [usual.median, usual.floor]
            if learnt:
                cells = [usual.median, min(usual.runs), max(usual.runs), usual.floor]
        written = ["–" if cell is None else f"{cell:.3f}" for cell in cells]
        table.add_row(verdict.name, *written, *([] if learnt else [verdict.word]))
    output().print(table)


def _parser() -> argparse.ArgumentParser:
    about = "Compares ratios, ours ÷ the server's limit, with their usual values. It takes some minutes."
    example = "example:\n  python -m bench.guard\n  python -m bench.guard --learn 7\n"
    parser = command_parser("bench.guard", about, example)
    add_server(parser)
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="default: %(default)s")
    about_only = "only ratios with this in their names; may be repeated"
    parser.add_argument("--only", default=[], action="append", metavar="TEXT", help=about_only)
    parser.add_argument("--learn", type=int, default=0, metavar="RUNS", help="learn usual values from so many runs")
    parser.add_argument("--add", action="store_true", help="with --learn: count earlier runs too")
    return parser


if __name__ == "__main__":
    sys.exit(entry.run(main))

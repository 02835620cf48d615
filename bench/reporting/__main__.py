"""``python -m bench.reporting`` writes the report from the files that the benches left in its folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.arguments import command_parser
from bench.reporting import inputs, tables
from bench.reporting.costs import costs_of
from bench.reporting.drawing import standalone
from bench.reporting.page import page, sections
from bench.reporting.quoted import FILE as FIGURES
from bench.reporting.quoted import quoted
from shardq.features import planning
from shardq.features.planning import FILE

FOLDER = Path(__file__).parent.parent / "report"
PAGE, TABLE = "index.html", "table.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 a file is of another form, 2 not understood."""
    written = f"{PAGE}, its plots as SVG, {TABLE}, {FIGURES}, and the costs of `shardq plan`"
    about = f"Writes {written} from {', '.join(inputs.MAKING)}."
    made = "These commands make them:\n" + "\n".join(f"  {how}" for how in inputs.MAKING.values())
    parser = command_parser("bench.reporting", about, made)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of all files (default: %(default)s)")
    folder: Path = parser.parse_args(arguments).folder
    try:
        found = inputs.read(folder)
    except msgspec.ValidationError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    shown = sections(found)
    plots = {f"{plot.name}.svg": standalone(plot.svg) for section in shown for plot in section.plots}
    for old in folder.glob("*.svg"):
        if old.name not in plots:
            old.unlink()
    table = tables.markdown(found.results, found.oldest, found.peers)
    figures = json.dumps(quoted(found.results, found.peers), indent=1, ensure_ascii=False) + "\n"
    for name, content in {**plots, PAGE: page(found, shown), TABLE: table, FIGURES: figures}.items():
        (folder / name).write_text(content, encoding="utf-8")
    if folder == FOLDER and found.results and found.nodes:
        costs = msgspec.json.format(msgspec.json.encode(costs_of(found.results, found.nodes)))
        (Path(planning.__file__).parent / FILE).write_bytes(costs + b"\n")
    for name, how in inputs.MAKING.items():
        if not (folder / name).exists():
            print(f"missing: {name}; make it with: {how}", file=sys.stderr)
    print(f"{folder / PAGE}, {len(plots)} plots, {TABLE}, {FIGURES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The figures that pages quote, by name, in one file. ``tests/test_figures.py`` compares every page with it."""

from __future__ import annotations

import re

from bench.peers.outcome import Outcome
from bench.reporting.inputs import Results

FILE = "figures.json"

_NAMED = (
    ("push, tasks/s", "push", "push, one at a time"),
    ("push, µs of the server", "push", "push, one at a time: server CPU"),
    ("push_many, tasks/s", "push", "push_many"),
    ("push_iter, tasks/s", "push", "push_iter"),
    ("buffered pushes, tasks/s", "push", "buffered"),
    ("made ready, tasks/s", "dispatch", "dispatch of"),
    ("forwarded, tasks/s", "dispatch", "dispatch and forward"),
    ("handled, tasks/s", "consume", "worker, no-op functions"),
    ("handler, idle, ms", "lateness", "due → handler of a worker (function)"),
    ("bytes of a task", "memory", "memory, 12,500"),
    ("resize in force, s", "expand", "4 → 16 shards, "),
    ("resize, tasks/s", "expand", "4 → 16 shards: tasks moved"),
    ("push in a resize, ms", "expand", "4 → 16 shards: a push"),
)


def quoted(results: Results | None, peers: Outcome | None) -> dict[str, float]:
    """Returns what was measured, by name; a figure with percentiles under two names."""
    found: dict[str, float] = {}
    for name, suite, begins in _NAMED:
        figure = results.first(suite, begins) if results else None
        if figure is None:
            continue
        if "p99" in figure.percentiles:
            found |= {f"{name}, {share}": figure.percentiles[share] for share in ("p50", "p99")}
        else:
            found[name] = figure.value
        if moved := re.search(r"all moved after ([\d.]+) s", figure.reference):
            found["resize done, s"] = float(moved[1])
    for peer in peers.peers if peers else ():
        found |= {f"{peer.name}: {row}": value for row, value in peer.rows.items() if value is not None}
    return {name: float(f"{value:.8g}") for name, value in found.items()}

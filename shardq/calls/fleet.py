"""report and fleet: the workers of an engine, and what all its processes say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardq.calls.answers import body
from shardq.calls.control import pairs
from shardq.calls.request import Call
from shardq.layout.keys import ControlKeys


def report(
    keys: ControlKeys, worker: str, *, alive_ms: int, report: bytes = b"", leave: bool = False, now_us: str = ""
) -> Call[bool]:
    """A worker's heartbeat. ``report``: empty when it is the one before. Returns True if the worker was not known
    before: then nothing is stored of an earlier report.
    """
    return Call.of(
        "report",
        keys,
        [worker, now_us, alive_ms, "leave" if leave else "stay", report],
        lambda answer: bool(body(answer)[0]),
    )


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of an engine, by the clock of the control slot's master."""

    now_us: int
    dispatchers: Mapping[str, int]
    """Name → the instant until which it counts as alive, in ms."""
    workers: Mapping[str, int]
    """The same."""
    reports: Mapping[str, bytes]


def fleet(keys: ControlKeys, *, now_us: str = "") -> Call[Processes]:
    return Call.of("fleet", keys, [now_us], _processes)


def _processes(answer: list[Any]) -> Processes:
    now_us, dispatchers, workers, reports = body(answer)
    return Processes(
        now_us=int(now_us),
        dispatchers={name.decode(): int(until) for name, until in pairs(dispatchers).items()},
        workers={name.decode(): int(until) for name, until in pairs(workers).items()},
        reports={name.decode(): text for name, text in pairs(reports).items()},
    )

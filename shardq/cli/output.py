"""Speaking: data on stdout, everything else on stderr. Used by all commands."""

from __future__ import annotations

import base64
import logging
from typing import Any

import click
import msgspec

from shardq.dispatcher import Lateness
from shardq.engine import Stats


def say(text: str) -> None:
    """A line for people, on stdout."""
    click.echo(text)


def complain(text: str) -> None:
    """A line on stderr."""
    click.echo(text, err=True)


def tell(value: Any) -> None:
    """One JSON object, on one line of stdout."""
    click.echo(msgspec.json.encode(value).decode())


def payload_shown(payload: Any) -> dict[str, Any]:
    """A payload as a part of a JSON object: bytes as text where they are text."""
    if not isinstance(payload, bytes):
        return {"payload": payload}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def lateness_shown(lateness: Lateness) -> dict[str, int | None]:
    return {
        "tasks": lateness.count,
        "p50_ms": lateness.p50_ms,
        "p99_ms": lateness.p99_ms,
        "max_ms": lateness.max_ms,
    }


def unseen(stats: Stats) -> str:
    """A sentence on the shards that could not be seen, which the totals leave out; empty when all could."""
    blind = [shard for shard in stats.shards if shard.error]
    if not blind:
        return ""
    which = ", ".join(str(shard.shard) for shard in blind[:5]) + (", …" if len(blind) > 5 else "")
    return f"{len(blind)} shards could not be seen and are not in the totals ({which}): {blind[0].error}"


def milliseconds(ms: int | None) -> str:
    """Latenesses are whole ms, rounded down.

    >>> milliseconds(None), milliseconds(0), milliseconds(1234)
    ('-', '<1', '1,234')
    """
    if ms is None:
        return "-"
    return f"{ms:,}" if ms else "<1"


def set_up_logging(*, verbose: bool) -> None:
    """The engine's log goes to stderr: warnings, with ``verbose`` all that it says."""
    log = logging.getLogger("shardq")
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.addHandler(_Stderr())
    log.propagate = False


class _Stderr(logging.Handler):
    """To whatever stderr is at the moment: a live table takes it over, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"{record.levelname.lower()}: {self.format(record)}")

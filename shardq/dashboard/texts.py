"""Texts of others (names, reasons, payloads) as they may be shown: the filters of templates, which escape them, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import printable
from shardq.dashboard.payloads import preview


def line(text: str | None, most: int = 120) -> str:
    r"""The last line of a text: of a traceback it is the error.

    >>> line("Traceback\n  File …\nKeyError: 'a'"), line(None)
    ("KeyError: 'a'", '')
    """
    last = (text or "").strip().rpartition("\n")[2]
    return printable(last if len(last) <= most else f"{last[: most - 1]}…")


def lines(text: str) -> str:
    """All of it, with escapes for what can't be seen."""
    return printable(text, keep="\n\t")


FILTERS: dict[str, Callable[..., Any]] = {"topic": shown_topic, "line": line, "lines": lines, "preview": preview}

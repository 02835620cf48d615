"""A test of several kinds of two things, such as engines and servers, tries each kind once, and not each with each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest


def diagonal(
    metafunc: pytest.Metafunc, fixtures: tuple[str, ...], ways: Sequence[tuple[str, ...]], *, one: bool = False
) -> None:
    """Runs a test that takes all of these fixtures in these ways, unless it chooses one of them by itself.

    ``one``: in one of them, which its name chooses, so that about as many run in each.
    """
    if one:
        ways = [ways[zlib.crc32(metafunc.definition.nodeid.encode()) % len(ways)]]
    chosen = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])}
    if set(fixtures) <= set(metafunc.fixturenames) and not chosen.intersection(fixtures):
        metafunc.definition.add_marker(pytest.mark.parametrize(fixtures, ways, indirect=True))


def _names(argument: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in argument.split(",")] if isinstance(argument, str) else list(argument)

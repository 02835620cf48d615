"""The description of a peer: its packages, the program that runs it, and how it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

DRAIN_TASKS = 20_000
SLOW_DRAIN_TASKS = 2_000
"""Slow peers handle fewer than some 2,000 tasks a second. Their drain should not take minutes."""


@dataclass(frozen=True, slots=True)
class Venv:
    """Packages of the Python index, in a virtual environment of their own. The first is the peer itself."""

    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    """The oldest version that it works with."""
    binary: str | None = None
    """A program that must be on the PATH too; the name is also that of its Debian package."""


@dataclass(frozen=True, slots=True)
class Npm:
    """Packages of the npm registry, in a folder of their own. The first is the peer itself."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Here:
    """shardq itself, from this source, in the environment that measures."""


Source: TypeAlias = Venv | Npm | Here


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    name: str
    source: Source
    program: str
    """A module or an ``.mjs`` file in ``programs``."""
    how: str
    """The API and the settings, in one line: they belong to the result."""
    store: Literal["redis", "beanstalkd"] = "redis"
    drain_tasks: int = DRAIN_TASKS

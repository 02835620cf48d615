"""The engine of each backend: one for a process and alias, made at its first use.

Django makes a backend for each thread; their engine is one, with one pool of connections. A child of a fork may use its
parent's, as any engine: it opens connections of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.core.signals import setting_changed

from shardq.engine import Engine

if TYPE_CHECKING:
    from shardq.integrations.django.backend import ShardqBackend

_engines: dict[tuple[str, str], Engine] = {}
"""The engines by alias and options: settings that a test overrides have an engine of their own."""


def engine(alias: str = "default") -> Engine:
    """Returns the engine of a backend in ``TASKS``: to look at it, or to push, pause and limit topics.

    >>> from shardq.integrations.django import engine
    >>> engine().stats().dead
    0
    """
    return backend_named(alias).engine


def backend_named(alias: str) -> ShardqBackend:
    """The backend of that alias. Raises InvalidTaskBackend where it is none of ours."""
    from shardq.integrations.django.backend import ShardqBackend
    from shardq.integrations.django.contract import InvalidTaskBackend, task_backends

    found = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(found, ShardqBackend):
        ours = [each for each in task_backends.settings if isinstance(task_backends[each], ShardqBackend)]
        has = f"those with it are {', '.join(ours)}" if ours else "none has it"
        raise InvalidTaskBackend(f"TASKS has no {alias!r} with BACKEND shardq.integrations.django.ShardqBackend; {has}")
    return found


def backends() -> list[ShardqBackend]:
    """All backends of ours in ``TASKS``."""
    from shardq.integrations.django.backend import ShardqBackend
    from shardq.integrations.django.contract import task_backends

    return [each for each in task_backends.all() if isinstance(each, ShardqBackend)]


def engine_for(alias: str, options: Mapping[str, Any]) -> Engine:
    """The one engine of these options in this process. It opens nothing. Raises BadInput for wrong options."""
    key = alias, repr(sorted(options.items()))
    found = _engines.get(key)
    # Two threads may both make one; the first that is put in is the one.
    return found if found is not None else _engines.setdefault(key, Engine(**options))


def close_engines() -> None:
    """Closes the engines of this process. Their next use makes new ones."""
    while _engines:
        _, found = _engines.popitem()
        found.close()


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting == "TASKS":
        close_engines()


setting_changed.connect(_settings_changed)

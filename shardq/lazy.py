"""Names of a package that are loaded at their first use: programs of threads load nothing for asyncio, and the
``shardq`` command hears Ctrl-C while the rest is loading.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as checkers know it; loading typing takes longer than all that is here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package. ``places``: each name to the module that has it, or that it is."""

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        place = import_module(places[name])
        value = place if place.__name__ == f"{package}.{name}" else getattr(place, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return load, names

"""Names of a package that are loaded at their first use: programs of threads load nothing for asyncio, and the
``shardq`` command hears Ctrl-C while the rest is loading.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as checkers know it; loading typing takes longer than all that is here

_OWN = {"TYPE_CHECKING", "lazily"}
"""What a package takes from here, and does not offer."""

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(
    package: str, places: Mapping[str, str], *, needs: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package. ``places``: each name to the module that has it, or that it is.
    ``needs``: packages of others without which the modules can't be loaded, each with the sentence that says what to
    install.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            place = import_module(places[name])
        except ModuleNotFoundError as exc:
            if (sentence := (needs or {}).get((exc.name or "").partition(".")[0])) is None:
                raise
            from shardq.errors import MissingPackage

            raise MissingPackage(sentence) from exc
        value = place if place.__name__ == f"{package}.{name}" else getattr(place, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places} - _OWN)

    return load, names

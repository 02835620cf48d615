"""The ``OPTIONS`` of the backend, and its engine: one for a process and alias, made at its first use.

Django makes a backend for each thread; their engine is one, with one pool of connections. A child of a fork may use its
parent's, as any engine: it opens connections of its own.
"""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from django.conf import settings
from django.core.signals import setting_changed

from shardq.core.model.checks import duration_ms
from shardq.engine import Engine
from shardq.engine.base import EngineBase
from shardq.errors import BadInput, InvalidOption

Transactions = Literal["commit", "outbox", "ignore"]

KEEP_RESULTS = dt.timedelta(days=7)

OF_ENGINE = tuple(name for name in inspect.signature(EngineBase.__init__).parameters if name not in ("self", "codec"))
"""The options of ``shardq.Engine`` that the backend takes. Payloads are JSON, as the framework's arguments are."""

OWN = ("transactions", "keep_results", "database")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    engine: Mapping[str, Any]
    transactions: Transactions
    keep_results: dt.timedelta | None
    """How long results are kept after the end of their task; None: there are none."""
    database: str
    """The alias of the database whose transactions count, and that has the outbox and the results."""

    @property
    def needs_tables(self) -> bool:
        return self.keep_results is not None or self.transactions == "outbox"

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> BackendOptions:
        """Raises BadInput for the first thing that is wrong. The values of the engine's options it checks itself."""
        if not isinstance(given, Mapping):
            raise InvalidOption(f"OPTIONS can't be {given!r}; give a dict")
        for name in given:
            if name not in (*OF_ENGINE, *OWN):
                raise InvalidOption(_unknown(name))
        engine = {name: value for name, value in given.items() if name in OF_ENGINE}
        transactions = given.get("transactions", "commit")
        if transactions not in get_args(Transactions):
            allowed = ", ".join(map(repr, get_args(Transactions)))
            raise InvalidOption(f"transactions={transactions!r} is not possible; use one of {allowed}")
        database = given.get("database", "default")
        if database not in settings.DATABASES:
            known = ", ".join(map(repr, settings.DATABASES))
            raise InvalidOption(f"database={database!r} is no alias in DATABASES; use one of {known}")
        return cls(engine, transactions, _keep(given.get("keep_results", KEEP_RESULTS)), database)


def _keep(value: Any) -> dt.timedelta | None:
    if value is None:
        return None
    try:
        return dt.timedelta(milliseconds=duration_ms(value, "keep_results"))
    except BadInput as exc:
        raise InvalidOption(f"{exc}; None keeps no results") from None


def _unknown(name: object) -> str:
    if name == "codec":
        return "there is no option 'codec': payloads are JSON, as the arguments of tasks are; leave it out"
    close = difflib.get_close_matches(str(name), (*OF_ENGINE, *OWN), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join((*OWN, *OF_ENGINE))}"
    return f"there is no option {name!r}; {hint}"


_engines: dict[tuple[str, str], Engine] = {}
"""The engines by alias and options: settings that a test overrides have an engine of their own."""


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

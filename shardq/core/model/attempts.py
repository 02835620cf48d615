"""The attempts of a task that failed, which ride behind the reason of the last one: in a record's place for it, and in
that of a death.

    REASON RS ENTRY RS ENTRY …      the earliest entry first, at most ``MOST``
    ENTRY   INSTANT US PROCESS US MILLISECONDS US CAUSE     the last line of a reason; milliseconds may be empty

RS and US are the control characters of ASCII of these names. The consumer that fails a task writes them: it was given
the text of the attempts before with the task. To the scripts it is all one reason, whose end they keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardq.core.model.checks import instant_ms, shown_instant
from shardq.core.model.task import Attempt

MOST = 5

CAUSE_BYTES = 200

_RS, _US = "\x1e", "\x1f"
_ENTRY = re.compile(f"(\\d{{1,15}}){_US}([^{_US}]*){_US}(\\d{{0,15}}){_US}([^{_US}]*)", re.DOTALL)


def with_attempt(reason: str, before: str, *, at_ms: int, process: str, took_ms: int | None) -> str:
    """The reason of an attempt that has failed, with its entry behind those of the attempts before.

    >>> text = with_attempt("Traceback …\\nKeyError: 'x'", "", at_ms=0, process="mail-1", took_ms=12)
    >>> reason, attempts = parted(text)
    >>> reason, attempts[0].process, attempts[0].seconds, attempts[0].reason
    ("Traceback …\\nKeyError: 'x'", 'mail-1', 0.012, "KeyError: 'x'")
    """
    reason = reason.replace(_RS, " ")
    cause = _plain(reason.rstrip().rpartition("\n")[2]).encode()[:CAUSE_BYTES].decode(errors="ignore")
    entry = _US.join((str(at_ms), _plain(process), "" if took_ms is None else str(took_ms), cause))
    return _RS.join((reason, *before.split(_RS)[1:][1 - MOST :], entry))


def joined(reason: str, attempts: Iterable[Attempt]) -> str:
    """The text that ``parted`` takes apart.

    >>> joined(*parted(text)) == text
    True
    """
    entries = (
        _US.join((str(instant_ms(each.at)), _plain(each.process), _took(each.seconds), _plain(each.reason)))
        for each in attempts
    )
    return _RS.join((reason.replace(_RS, " "), *entries))


def _took(seconds: float | None) -> str:
    return "" if seconds is None else str(round(seconds * 1000))


def holder_of(token: str) -> str:
    """The consumer that took a lease, by its token."""
    return token.rpartition(":")[0] or token


def _plain(text: str) -> str:
    return text.replace(_RS, " ").replace(_US, " ")


def parted(text: str) -> tuple[str, tuple[Attempt, ...]]:
    """The reason, and the attempts that were noted with it. An entry that can't be read is left out."""
    reason, *entries = text.split(_RS)
    found = map(_ENTRY.fullmatch, entries)
    return reason, tuple(
        Attempt(at=shown_instant(int(at)), process=process, seconds=int(took) / 1000 if took else None, reason=cause)
        for at, process, took, cause in (match.groups() for match in found if match)
    )

"""Reading the URL of a sink, and its options: those of TLS are named as in the URL of an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from shardq.drivers.settings import TLS_OPTIONS, Tls, options_in, tls_of
from shardq.errors import InvalidUrl
from shardq.sinks.base import SEND_S

TIMEOUT = "timeout"
SHORTEST_S, LONGEST_S = 0.1, 600.0


def split(url: str, form: str) -> SplitResult:
    """The parts of a URL, whose port is a number if it has one. ``form``: what is written after the scheme."""
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # both are read only now
    except ValueError as exc:
        raise InvalidUrl(
            f"this {scheme}:// URL is not understood; write {scheme}://{form}, and the characters / ? # @ of a user or "
            "password percent-encoded"
        ) from exc
    return parts


class Options(NamedTuple):
    """The options of a sink's URL."""

    timeout_s: float
    """How long the sink may be silent."""
    tls: Tls | None
    """None: the scheme is without TLS."""


def options(scheme: str, text: str, *, tls: bool, mark: str = "?") -> Options:
    """Reads the options that follow the ``mark``. Raises InvalidUrl with what is allowed."""
    given = options_in(scheme, text, (TIMEOUT, *(TLS_OPTIONS if tls else ())), mark=mark)
    return Options(timeout(scheme, given, SEND_S), tls_of(scheme, given) if tls else None)


def timeout(scheme: str, given: Mapping[str, str], usual_s: float) -> float:
    """The option ``timeout``, in seconds."""
    text = given.get(TIMEOUT)
    if text is None:
        return usual_s
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text) or not SHORTEST_S <= float(text) <= LONGEST_S:
        raise InvalidUrl(
            f"{TIMEOUT}= of a {scheme}:// URL is not possible; give seconds, from {SHORTEST_S:g} to {LONGEST_S:g}"
        )
    return float(text)

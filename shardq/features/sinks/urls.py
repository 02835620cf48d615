"""Reading the URL of a sink and its options, and saying why its server can't be reached."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from shardq.core.drivers import faults
from shardq.core.drivers.settings import TLS_OPTIONS, Tls, options_in, tls_of
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SEND_S

TIMEOUT = "timeout"
SHORTEST_S, LONGEST_S = 0.1, 600.0

UNKNOWN = "1"
"""Stands for a secret where a URL is only checked: its value is known to the process that sends."""


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


def split_name(url: str) -> tuple[str, str]:
    """The part before the # of a URL, and behind it the name of what is fed, as it is written. Raises InvalidUrl for
    options behind it, which would be a part of the name.
    """
    where, _, name = url.partition("#")
    if "?" in name:
        scheme = url.partition("://")[0]
        raise InvalidUrl(
            f"the options of a {scheme}:// URL stand before the #: {scheme}://HOST?timeout=5#NAME; a ? in the name is "
            "written %3F"
        )
    return where, name


class Options(NamedTuple):
    """The options of a sink's URL."""

    timeout_s: float
    """How long the sink may be silent."""
    tls: Tls | None
    """None: the scheme is without TLS."""
    others: dict[str, str]
    """The options of this sink alone."""


def options(
    scheme: str, text: str, *, tls: bool, mark: str = "?", also: Sequence[str] = (), usual_s: float = SEND_S
) -> Options:
    """Reads the options that follow the ``mark``; ``also``: those of this sink alone. ``usual_s``: the timeout, if none
    is given. Raises InvalidUrl.
    """
    given = options_in(scheme, text, (TIMEOUT, *(TLS_OPTIONS if tls else ()), *also), mark=mark)
    others = {name: value for name, value in given.items() if name in also}
    return Options(timeout(scheme, given, usual_s), tls_of(scheme, given) if tls else None, others)


def addresses_in(url: str) -> tuple[str, ...]:
    """The servers of a URL of any scheme, as HOST:PORT; a port that is not given is 0.

    >>> addresses_in("kafka://u:p@a:9092,b/topic")
    ('a:9092', 'b:0')
    """
    authority = re.split(r"[/?#]", url.partition("://")[2] if "://" in url else url)[0].rpartition("@")[2]
    found = [re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", part) or part for part in authority.split(",")]
    return tuple(
        f"{part}:0" if isinstance(part, str) else f"{part[1].strip('[]')}:{part[2] or 0}" for part in found if part
    )


def timeout(scheme: str, given: Mapping[str, str], usual_s: float) -> float:
    """The option ``timeout``, in seconds."""
    text = given.get(TIMEOUT, str(usual_s))
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text) or not SHORTEST_S <= float(text) <= LONGEST_S:
        raise InvalidUrl(
            f"{TIMEOUT}= of a {scheme}:// URL is not possible; give seconds, from {SHORTEST_S:g} to {LONGEST_S:g}"
        )
    return float(text)


def unreached(address: str, exc: OSError) -> str:
    """Says that no connection to the address was made, why, and what to do.

    >>> unreached("127.0.0.1:4222", ConnectionRefusedError(111, "Connection refused"))
    "127.0.0.1:4222 can't be reached: Connection refused; check that it runs, and the host and the port in the URL"
    """
    if isinstance(exc, ssl.SSLError):
        fault = faults.of_tls(exc)
    elif isinstance(exc, socket.gaierror):
        fault = faults.of_resolving(exc, address)
    else:
        fault = faults.of_connecting(exc)
    advice = fault.advice or "check that it runs, and the host and the port in the URL"
    return f"{address} can't be reached: {fault.text}; {advice}"

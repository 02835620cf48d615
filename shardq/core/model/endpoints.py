"""The URL of a webhook: which texts are one, its host, and the key of a task that is pushed with one. No I/O.

Where a hook may go is another question, which ``features/webhooks`` answers when it is sent.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from shardq.core.model.printable import quoted
from shardq.errors import InvalidUrl

LONGEST = 2_000
"""Characters of a URL. All are ASCII."""

_WRONG = re.compile(r"[^\x21-\x7e]|[\\\"<>^`{|}]")
"""Characters that a URL has percent-encoded, or that programs read in different ways."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")

_SHOWN = 180
"""Characters of a host that a key shows: a key has 200 bytes at most."""


def parts_of(url: str, named: str = "the URL of a webhook") -> tuple[SplitResult, str]:
    """The parts of a URL, and its host in lower case and without brackets. Raises InvalidUrl, by the name and without
    the URL: it may hold a secret.
    """
    if isinstance(url, str) and len(url) <= LONGEST and not _WRONG.search(url):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            if literal := "[" in parts.netloc:
                ipaddress.IPv6Address(host)
        except ValueError:
            host, literal = "", False
        is_host = "%" not in host if literal else _NAME.fullmatch(host) is not None
        if is_host and port != 0 and parts.scheme in ("http", "https"):
            return parts, host
    raise InvalidUrl(
        f"{named} is not understood; give https://HOST/PATH, of ASCII, without blanks, and of {LONGEST} characters at "
        "most"
    )


def host_in(url: str) -> str:
    """The host of a URL, in lower case and without brackets. Raises InvalidUrl."""
    return parts_of(url)[1]


@lru_cache(4096)
def default_key(url: str) -> str:
    """The key of a hook whose push names none: one for each URL, that shows the host. Raises InvalidUrl.

    >>> default_key("https://customer.example/in")
    'customer.example~b7eccf85'
    """
    return f"{host_in(url)[:_SHOWN]}~{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def checked_url(url: str) -> str:
    """Returns the ``url=`` of a task. Raises InvalidUrl."""
    if not isinstance(url, str):
        raise InvalidUrl(f"url can't be {quoted(url)}; give a str: https://HOST/PATH")
    _check_url(url)
    return url


@lru_cache(4096)
def _check_url(url: str) -> None:
    parts, _ = parts_of(url, "url=")
    if "@" in parts.netloc:
        raise InvalidUrl(
            "url= can't have a login before its host: everybody who may read the task would read it; sign hooks, or "
            "post those from a handler, by shardq.Webhooks"
        )
    if "#" in url:
        raise InvalidUrl("url= can't have a fragment (#…): no server gets that; leave it out")

"""Credentials that a provider gives, and that run out: tokens of AWS IAM, Entra ID, Google IAM. Called by whoever
connects, and by whoever uses a connection.

A provider is asked in a thread of its own, by one caller at a time: it may look at a file, sign, or send a request. It
is asked for each new connection, unless it was a moment ago; and once a second while connections are used, less often
if it takes long, whose answer nobody waits for. A connection that was made with other credentials than the newest ones
is given these, by AUTH, before its next use.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from shardq.core import forks
from shardq.core.threads import begun
from shardq.errors import InvalidOption

log: logging.Logger = logging.getLogger("shardq")

LOOK_S = 1.0
"""The time between two looks for newer credentials."""

FRESH_S = 0.2
"""Credentials that are this old do for a new connection: many are made at once."""

SHARE = 100
"""A provider is asked so seldom that it works for one part in so many of the time, where it takes long."""

SECRET = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A user and a password. None: not given."""

    username: str | None = None
    password: str | None = None

    def __bool__(self) -> bool:
        return bool(self.username or self.password)

    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, {SECRET if self.password else None})"


NOBODY = Credentials()


class CredentialProvider(Protocol):
    """A giver of credentials: redis-py's ``CredentialProvider`` is one, so are those of the clouds' packages.

    >>> class Signed:
    ...     def get_credentials(self):
    ...         return "app", sign(ttl=900)
    >>> engine = shardq.Engine("rediss://cache.example:6379", credentials=Signed())
    """

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Returns a user and a password, or a password alone."""
        ...


class Provided:
    """The credentials of one provider, for all connections of an engine."""

    def __init__(self, provider: Any) -> None:
        if not callable(getattr(provider, "get_credentials", None)):
            raise InvalidOption(
                f"credentials={type(provider).__name__} is not possible; give an object with get_credentials(), which "
                "returns a user and a password, such as one of redis-py's CredentialProvider"
            )
        self._provider = provider
        self.newest: Credentials | None = None
        self._asked_at = self._next_at = 0.0
        """When the newest were asked for; when they are asked for next."""
        self._set_up()
        forks.watch(self, Provided._set_up)

    def _set_up(self) -> None:
        self._lock = threading.RLock()
        self._asking: Future[Credentials] | None = None
        self._problem = ""

    def ask(self) -> Future[Credentials]:
        """The credentials for a new connection, or the provider's exception."""
        with self._lock:
            if self._asking is not None:
                return self._asking
            if self.newest is not None and time.monotonic() - self._asked_at < FRESH_S:
                known: Future[Credentials] = Future()
                known.set_result(self.newest)
                return known
            asking = begun(self._asked, "shardq-credentials")
            if not asking.done():  # it is where the system has no thread to spare
                self._asking = asking
            return asking

    def newer(self, held: Credentials) -> Credentials | None:
        """The newest credentials, if they are others than those that a connection has. Waits for nobody."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + LOOK_S
            self.ask()
        return None if self.newest in (None, held) else self.newest

    def _asked(self) -> Credentials:
        began = time.monotonic()
        try:
            found = _read(self._provider.get_credentials)
        except BaseException as exc:
            if not self._problem:
                log.error("the provider of credentials fails, trying again: %s: %s", type(exc).__name__, exc)
            self._problem = str(exc) or type(exc).__name__
            raise
        else:
            if self._problem:
                log.warning("the provider of credentials works again")
            self._problem, self.newest, self._asked_at = "", found, began
            return found
        finally:
            took = time.monotonic() - began
            with self._lock:
                self._next_at = time.monotonic() + max(LOOK_S, SHARE * took)
                self._asking = None

    def __repr__(self) -> str:
        return f"<credentials of {type(self._provider).__name__}>"


def _read(get: Callable[[], Any]) -> Credentials:
    told = get()
    words = tuple(os.fsdecode(word) if isinstance(word, bytes) else word for word in told)
    if not 1 <= len(words) <= 2 or not all(isinstance(word, str) for word in words):
        raise TypeError("get_credentials() has to return a tuple: a user and a password, or a password")
    return Credentials(words[0] or None, words[1]) if len(words) == 2 else Credentials(None, words[0])

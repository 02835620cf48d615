"""Tokens: who may call the door, in which roles, and for which topics. They stand in a file, a line each, which has the
hashes of the secrets alone:

    # NAME  ROLES            TOPICS         HASH
    shop    producer         order-*,mail   sha256:6b3a55e0…
    ops     operator,viewer  *              sha256:0cc175b9…

``shardq token`` makes a secret and its line. A secret has 192 random bits, so a plain SHA-256 is enough: there is
nothing to guess. The file is read again when it has changed; if it is wrong then, the tokens of before stay, and the
log says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from shardq.core.model.checks import check_name
from shardq.core.model.ids import DEFAULT_TOPIC
from shardq.core.model.printable import quoted
from shardq.errors import BadInput, InvalidOption

log: logging.Logger = logging.getLogger("shardq.http")

Role = Literal["producer", "worker", "operator", "viewer"]

ROLES: tuple[Role, ...] = get_args(Role)

PREFIX = "shardq_"
"""The beginning of every secret: scanners of repositories find one that has leaked."""

SECRET_BYTES = 24

LOOK_S = 1.0
"""The time between two looks at the file."""

MOST_BYTES = 1 << 20
"""The size of the file: some 10,000 tokens."""


_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Whoever has shown a token.

    >>> shop = Caller("shop", frozenset(["producer"]), ("order-*",))
    >>> shop.may("producer", "order-eu"), shop.may("producer", "mail"), shop.may("viewer", "order-eu")
    (True, False, False)
    """

    name: str
    roles: frozenset[Role]
    topics: tuple[str, ...]
    """Patterns, in which ``*`` stands for any letters."""

    def has(self, roles: Collection[Role]) -> bool:
        """True if it has one of these roles, for whatever topics. Operators see what viewers see."""
        return not self.roles.isdisjoint(roles) or ("viewer" in roles and "operator" in self.roles)

    def may(self, role: Role | Collection[Role], topic: str | None) -> bool:
        """True if it has the role, or one of these, for this topic. ``topic=None``: for every topic."""
        if type(role) is str and role in self.roles and "*" in self.topics:
            return True
        return self.has((role,) if isinstance(role, str) else role) and self.reaches(topic)

    def reaches(self, topic: str | None) -> bool:
        """True if its patterns have the topic; None: every topic."""
        if "*" in self.topics:
            return True
        return topic is not None and any(_fits(pattern, topic) for pattern in self.topics)


ANYBODY = Caller("", frozenset(ROLES), ("*",))
"""The caller where there are no tokens."""


def _fits(pattern: str, topic: str) -> bool:
    if pattern == DEFAULT_TOPIC:
        return topic == ""
    if "*" not in pattern:
        return pattern == topic
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), topic) is not None


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def checked(name: str, roles: Iterable[str], topics: Iterable[str]) -> Caller:
    """The caller of a token. Raises InvalidOption."""
    check_name(name, of="token")
    roles, topics = tuple(roles), tuple(topics)
    for role in roles:
        if role not in ROLES:
            raise InvalidOption(f"there is no role {quoted(role)}; there is {', '.join(ROLES)}")
    for topic in topics:
        if topic != DEFAULT_TOPIC and _PATTERN.fullmatch(topic) is None:
            raise InvalidOption(
                f"{quoted(topic)} is not a topic; write its name, a pattern such as 'order-*', * for all topics, or "
                f"{DEFAULT_TOPIC} for the default topic alone"
            )
    if not roles or not topics:
        raise InvalidOption(f"a token needs a role and a topic: one of {', '.join(ROLES)}; and * for all topics")
    return Caller(name, frozenset(roles), topics)  # type: ignore[arg-type]  # they are roles, as was checked


def line_of(caller: Caller, secret: str) -> str:
    """The line of the file that lets in whoever has the secret."""
    roles = ",".join(role for role in ROLES if role in caller.roles)
    return f"{caller.name} {roles} {','.join(caller.topics)} sha256:{hashed(secret)}"


class Tokens:
    """The tokens of one file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises InvalidOption if the file can't be read, or is wrong."""
        self._path = Path(path)
        self._callers: dict[str, Caller] = {}
        """Hash → caller."""
        self._seen: tuple[int, int, int] | None = None
        """Of the file as it was read last: its time, its size, and its number."""
        self._look_at = 0.0
        self._read()

    def find(self, secret: str) -> Caller | None:
        """The caller with this secret."""
        if time.monotonic() >= self._look_at:
            try:
                self._read()
            except InvalidOption as exc:
                log.error("%s; the tokens of before stay", exc)
        return self._callers.get(hashed(secret))

    def _read(self) -> None:
        """Reads the file if it has changed."""
        self._look_at = time.monotonic() + LOOK_S
        try:
            at = self._path.stat()
            seen = at.st_mtime_ns, at.st_size, at.st_ino
            if seen == self._seen:
                return
            self._seen = seen  # a wrong one is told once
            with self._path.open("rb") as file:
                text = file.read(MOST_BYTES + 1).decode()
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            if self._seen is None and self._callers:
                return  # it was told before
            self._seen = None
            raise InvalidOption(f"the file of tokens {self._path} can't be read: {why}") from None
        if len(text) > MOST_BYTES:
            raise InvalidOption(f"the file of tokens {self._path} has more than {MOST_BYTES >> 20} MiB")
        self._callers = dict(self._parsed(text))

    def _parsed(self, text: str) -> Iterable[tuple[str, Caller]]:
        found: dict[str, Caller] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            words = line.split()
            is_hash = _HASH.fullmatch(words[-1])
            # what stands there is not repeated: it may be a secret
            if len(words) != 4 or is_hash is None:
                raise InvalidOption(
                    f"line {number} of {self._path} is not NAME ROLES TOPICS sha256:HASH; `shardq token` makes one"
                )
            name, roles, topics, _ = words
            try:
                found[is_hash[1]] = checked(name, roles.split(","), topics.split(","))
            except BadInput as exc:
                raise InvalidOption(f"line {number} of {self._path}: {exc}") from None
        if not found:
            raise InvalidOption(f"the file of tokens {self._path} has none; `shardq token` makes a line of it")
        return found.items()

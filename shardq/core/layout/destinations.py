"""Where a forwarded topic goes, as text: a list or a stream of this engine's servers, or a URL of something else.

    mail                            a list here
    stream:mail                     a stream here
    webhook://                      the URL of each task
    SCHEME://…                      something else, which a feature knows by the scheme

A URL may hold a password. ``masked`` is the form for people: logs, stats, messages. No I/O.
"""

from __future__ import annotations

import re

STREAM = "stream:"
WEBHOOK = "webhook://"

_SECRET = "***"
_REFERENCE = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\})+")
_OPTION = re.compile(r"((?:header\.|sign)[^=&]*=)([^&]*)")  # an option of an HTTP endpoint that may be a secret
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(.*)", re.DOTALL)


def is_here(to: str) -> bool:
    """True for a list or a stream of this engine's servers."""
    return "://" not in to


def is_stream(to: str) -> bool:
    """True for a stream of this engine's servers."""
    return is_here(to) and to.startswith(STREAM)


def is_of_urls(to: str) -> bool:
    """True for webhooks: each task goes to a URL of its own."""
    return to.startswith(WEBHOOK)


def key_of(to: str) -> str:
    """The name of the list or of the stream here."""
    return to.removeprefix(STREAM)


def masked(to: str) -> str:
    """The destination without its secrets: passwords, users without a password (tokens), what follows a ``?``, and the
    headers and the keys among the options of an HTTP endpoint. References to secrets are shown.

    >>> masked("amqp://shop:secret@rabbit/#mail"), masked("https://${TOKEN}@shop/hook?key=1")
    ('amqp://shop:***@rabbit/#mail', 'https://${TOKEN}@shop/hook?***')
    """
    found = _URL.fullmatch(to)
    if found is None:
        return to
    scheme, rest = found.groups()
    # up to the last @: a password that was not percent-encoded may hold one
    login, at, where = rest.rpartition("@")
    if at:
        user, colon, password = login.partition(":")
        login = f"{user}:{_hidden(password)}" if colon else _hidden(login)
    where, hash, fragment = where.partition("#")
    where, mark, _ = where.partition("?")
    if scheme.startswith(("http", "webhook")):
        fragment = _OPTION.sub(lambda found: found[1] + _hidden(found[2]), fragment)
    return f"{scheme}{login}{at}{where}" + (f"?{_SECRET}" if mark else "") + hash + fragment


def _hidden(secret: str) -> str:
    return secret if not secret or _REFERENCE.fullmatch(secret) else _SECRET


def named(to: str) -> str:
    """A destination, already masked, as a sentence names it.

    >>> named("mail"), named("stream:mail"), named("nats://127.0.0.1#mail")
    ("the list 'mail'", "the stream 'mail'", 'nats://127.0.0.1#mail')
    """
    return f"the {'stream' if is_stream(to) else 'list'} {key_of(to)!r}" if is_here(to) else to

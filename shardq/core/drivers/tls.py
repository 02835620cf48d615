"""The TLS of a connection: contexts from the files that a URL names. Called by ``sockets`` and ``aiosockets``."""

from __future__ import annotations

import ssl
from pathlib import Path

from shardq.core.drivers.descriptors import scarce
from shardq.core.drivers.settings import Tls
from shardq.errors import InvalidUrl

_Stamp = tuple[tuple[int, int, int], ...]
_made: dict[Tls, tuple[_Stamp, ssl.SSLContext]] = {}


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context for new connections. Raises InvalidUrl, with the option and its file, when none can be made.

    It is made again when a file has changed, so that a process outlives its certificates. Files that can't be used
    while they are being changed leave the one before in force.
    """
    before = _made.get(tls)
    try:
        stamp = _stamp(tls)
        if before is not None and before[0] == stamp:
            return before[1]
        context = _context(tls)
    except InvalidUrl:
        if before is None:
            raise
        return before[1]
    _made[tls] = stamp, context
    return context


def _stamp(tls: Tls) -> _Stamp:
    """A value that changes with every change of the files. Raises when one is not readable."""
    seen = []
    for option, name in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if name is None:
            continue
        try:
            with Path(name).open("rb"):
                status = Path(name).stat()
        except OSError as exc:
            if scarce(exc):
                raise
            raise InvalidUrl(f"{option}={name} in the URL can't be read: {exc.strerror}; name a PEM file") from exc
        seen.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(seen)


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (ssl.SSLError, OSError) as exc:
        if scarce(exc):
            raise
        raise InvalidUrl(f"ca={tls.ca} in the URL holds no certificate in PEM form: {_reason(exc)}") from exc
    context.check_hostname = tls.check_hostname
    if tls.cert is not None:
        _show(context, tls.cert, tls.key)
    return context


def _show(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Makes the context show a client's certificate."""
    named = f"key={key}" if key else f"cert={cert}"

    def pass_phrase() -> str:
        # without this OpenSSL would ask for it on the terminal, for each connection
        raise InvalidUrl(
            f"{named} in the URL holds a key with a pass phrase, and nobody is there to type it; write one without: "
            "openssl pkey -in KEY -out NEW"
        )

    try:
        context.load_cert_chain(cert, key, pass_phrase)
    except ssl.SSLError as exc:
        raise InvalidUrl(_mismatch(exc, cert, key)) from exc


def _mismatch(exc: ssl.SSLError, cert: str, key: str | None) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH":
        return f"key={key or cert} in the URL is not the key of the certificate cert={cert}; name the pair"
    if b"-----BEGIN CERTIFICATE-----" not in Path(cert).read_bytes():
        return f"cert={cert} in the URL holds no certificate in PEM form"
    if b"PRIVATE KEY-----" not in Path(key or cert).read_bytes():
        where = f"key={key} in the URL" if key else f"cert={cert} in the URL, without key=,"
        return f"{where} holds no private key in PEM form; name its file with key="
    return f"cert={cert} and key={key or cert} in the URL can't be used: {_reason(exc)}"


def _reason(exc: OSError) -> str:
    reason: str | None = getattr(exc, "reason", None)
    return (reason or exc.strerror or str(exc)).replace("_", " ").lower()

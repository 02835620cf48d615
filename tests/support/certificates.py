"""Certificates for TLS servers, and the system's Redis, which is built with TLS; the servers from wheels are not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.server import Server, ServerFailed, Tls


def made(folder: Path) -> Path:
    """ca.pem, a pair each of server.* and client.* that it signed, and other.* that it did not."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH to make certificates with")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # as Python 3.13 and later want it, which check strictly
    may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl(folder, "req", "-x509", *curve, *may_sign, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for who in ("server", "client"):
        openssl(folder, "req", *curve, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{who}.csr", *signed, "-out", f"{who}.pem")
    openssl(folder, "req", "-x509", *curve, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other")
    return folder


def of_server(files: Path) -> Tls:
    return Tls(files / "ca.pem", files / "server.pem", files / "server.key")


def binary() -> Path:
    """Returns the server program that is built with TLS."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on the PATH; it is the one that is built with TLS")
    return Path(found)


@contextmanager
def serving(files: Path) -> Iterator[Server]:
    """A server with TLS, which wants certificates of its clients."""
    program = binary()
    try:
        with Server(program, tls=of_server(files)) as server:
            yield server
    except ServerFailed as exc:
        pytest.skip(f"{program} does not start with TLS: {exc}")


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

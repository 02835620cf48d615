"""The command lines of the benches share these options and the look of their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from cluster import servers


def command_parser(module: str, about: str, more: str) -> argparse.ArgumentParser:
    """Returns a parser for ``python -m MODULE``. ``more`` follows the options in the help, line by line as it is."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m {module}", description=about, epilog=more, formatter_class=form)


def add_server(parser: argparse.ArgumentParser) -> None:
    about = "default: %(default)s"
    parser.add_argument("--server", type=_server, choices=servers.KINDS, default=servers.DEFAULT, help=about)


def add_json(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--json", type=_writable, metavar="FILE", help=about)


def _server(kind: str) -> str:
    """Returns the kind. One that this machine lacks is said so now."""
    try:
        if kind in servers.KINDS:
            servers.binary(kind)
    except servers.NoSuchServer as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return kind


def _writable(text: str) -> Path:
    """Returns the file for the result. A wrong path is found now, not after minutes of measuring."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} can't be written: give a file in a directory that exists")
    return file

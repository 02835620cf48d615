"""What the command lines of the benches have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def writable(text: str) -> Path:
    """The type of an argument: a file for the result. What is wrong with it is found out now, not after minutes."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} can't be written: give a file in a directory that exists")
    return file

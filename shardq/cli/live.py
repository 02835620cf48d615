"""A line on a terminal that tells how far a command has come. Called by commands on many tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def live(what: str) -> Iterator[Callable[[str], object]]:
    """Shows ``what``, and then whatever the function that it gives is called with, on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task(what)
        yield lambda text: progress.update(line, description=text)

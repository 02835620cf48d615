"""Runs ``python -m cluster`` and ``python -m bench``. Turns Ctrl-C, also while they load, and a reader of their output
that has gone into exit codes.

It loads nothing that Python has not loaded by itself, because Ctrl-C is not heard before ``run``.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing has it, which is not loaded
if TYPE_CHECKING:
    from collections.abc import Callable


def run(main: Callable[[], int]) -> int:
    """The exit code of ``main``, which loads the command itself."""
    try:
        try:
            return main()
        finally:
            print(end="", flush=True)  # not first when Python ends, where nobody could catch what it raises
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1

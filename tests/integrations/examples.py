"""The examples in the docstrings of integrations, run on real servers."""

from __future__ import annotations

import doctest
from typing import Any


def run_examples(value: Any, names: dict[str, Any]) -> int:
    """Runs the examples of a function or a method with these names. Returns how many there were."""
    found = doctest.DocTestParser().get_doctest(value.__doc__, names, value.__qualname__, None, None)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    outcome = runner.run(found, out=said.append, clear_globs=False)
    assert outcome.failed == 0, "".join(said)
    names |= found.globs
    return outcome.attempted

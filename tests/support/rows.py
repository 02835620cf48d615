"""Many rows of a table in one test: the beginning and the end of a test take longer than most rows do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[..., None]


def each_row(names: str | tuple[str, ...], table: Mapping[str, Any]) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize``, in one test, whose fixtures all rows share: what they find they must make anew.

    Every row is tried. A failure is that of the first row that fails, with a note of all that do.
    """
    words = (names,) if isinstance(names, str) else names

    def tried_by(test: Test) -> Test:
        @functools.wraps(test)
        def tried(**fixtures: Any) -> None:
            failures: dict[str, Exception] = {}
            for row, values in table.items():
                given = (values,) if isinstance(names, str) else values
                try:
                    test(**dict(zip(words, given, strict=True)), **fixtures)
                except Exception as exc:  # noqa: BLE001
                    failures[row] = exc
            for first in failures.values():
                first.add_note(f"{len(failures)} of {len(table)} rows fail: {', '.join(failures)}")
                raise first

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in words]
        vars(tried)["__signature__"] = signature.replace(parameters=left)
        return tried

    return tried_by

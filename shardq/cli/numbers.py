"""The types of options that take numbers: they refuse other text with a hint. Called by the commands."""

from __future__ import annotations

import re
from typing import Any

import click

_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s,_']")


class Whole(click.IntRange):
    """A whole number, within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self.fail(_refusal(value, "a whole number", _WHOLE), param, ctx)
        return super().convert(value, param, ctx)


class Decimal(click.FloatRange):
    """A number, within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not _DECIMAL.fullmatch(value):
            self.fail(_refusal(value, "a number", _DECIMAL), param, ctx)
        return super().convert(value, param, ctx)


def _refusal(value: str, what: str, form: re.Pattern[str]) -> str:
    """
    >>> _refusal("1,000", "a whole number", _WHOLE)
    "'1,000' is not a whole number; write it without separators, as 1000"
    """
    bare = _SEPARATORS.sub("", value)
    hint = f"; write it without separators, as {bare}" if bare != value and form.fullmatch(bare) else ""
    return f"{value!r:.80} is not {what}{hint}"

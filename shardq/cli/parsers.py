"""The values of options: numbers, which refuse other text with a hint, and times, rates and sizes, which
``model.quantities`` and ``model.quantities`` read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from shardq.core.model.quantities import Bound, due_range, expiry, instant, rate, seconds, size

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


__all__ = ["Bound", "due_options", "due_range", "expiry", "instant", "rate", "read_by", "seconds", "size"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def read_by(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """The callback of an option whose value ``read`` reads."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> T | None:
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc), ctx, param) from None

    return callback


def due_options(command: F) -> F:
    """Adds --delay and --at."""
    delay = click.option(
        "--delay", metavar="TIME", callback=read_by(seconds), help="From now: 90, 1.5, 90s, 5m, 1h30m, 1d."
    )
    at = click.option(
        "--at", metavar="INSTANT", callback=read_by(instant), help="2030-01-31T12:00:00Z, or seconds since 1970."
    )
    return delay(at(command))


def rate_option(text: str) -> Callable[[F], F]:
    return click.option("--rate", metavar="RATE", callback=read_by(rate), help=text)


def headers_of(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str] | None:
    """The callback of --header."""
    pairs = [text.partition("=") for text in value]
    for text, (key, equals, _) in zip(value, pairs, strict=True):
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is no header; write it as KEY=VALUE", ctx, param)
    return {key: content for key, _, content in pairs} or None


def raw_json(text: str) -> Any:
    """The payload that stores JSON text as it stands. Raises ValueError when it is not JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise ValueError(f"the payload is not JSON: {exc}; push other text with --text or --raw") from None
    return msgspec.Raw(text.encode())

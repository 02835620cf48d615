"""Numbers as servers read and print them: integers, scores, and the long doubles of HINCRBYFLOAT."""

from __future__ import annotations

import math
import re
from fractions import Fraction

INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
FLOAT = re.compile(rb"[+-]?([0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|inf|infinity)", re.IGNORECASE)

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_PLAIN = 1 << 62  # larger integers are printed like fractions


def integer(word: bytes) -> int | None:
    """Reads an integer of 64 bits, written without a plus sign or leading zeros."""
    if not INTEGER.fullmatch(word):
        return None
    number = int(word)
    return number if _LEAST <= number <= _MOST else None


def truncated(number: float) -> int:
    """A number of Lua as the integer that a client is answered."""
    return int(number) if _LEAST <= number <= _MOST else _LEAST


def score(word: bytes) -> float | None:
    """Reads a score; None where it is none, too large or too small."""
    if not FLOAT.fullmatch(word):
        return None
    number = float(word)
    if math.isinf(number) and b"n" not in word.lower():
        return None
    return None if number == 0 and re.search(rb"[1-9]", re.split(rb"[eE]", word)[0]) else number


def shortest(number: float) -> bytes:
    """Prints a double as servers do since Redis 7.2: with the fewest digits that tell it from others."""
    if math.isinf(number):
        return b"inf" if number > 0 else b"-inf"
    if math.isnan(number):
        return b"nan"
    if abs(number) <= _PLAIN and number == int(number):
        return b"%d" % int(number)
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    power = int(exponent or 0) - len(part)
    bare = digits.rstrip("0")
    power += len(digits) - len(bare)
    return (sign + _laid_out(bare, power)).encode()


def _laid_out(digits: str, power: int) -> str:
    first = power + len(digits) - 1  # the power of ten of the first digit
    if power >= 0 and first < len(digits) + 7:
        return digits + "0" * power
    if power < 0 and (power > -7 or abs(first) < 4):
        point = len(digits) + power
        return f"{digits[:point]}.{digits[point:]}" if point > 0 else f"0.{'0' * -point}{digits}"
    point_and_rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{point_and_rest}e{'-' if first < 0 else '+'}{abs(first)}"


def seventeen(number: float) -> bytes:
    """Prints a double as Redis 7.0 does."""
    return b"%.17g" % number


def added(word: bytes, increment: bytes) -> bytes | None:
    """The sum of HINCRBYFLOAT, which servers count in doubles of 80 bits. None: no finite number."""
    if not (FLOAT.fullmatch(word) and FLOAT.fullmatch(increment)) or b"n" in (word + increment).lower():
        return None
    total = _rounded(_rounded(Fraction(word.decode())) + _rounded(Fraction(increment.decode())))
    scaled = round(abs(total) * 10**17)
    whole, part = divmod(scaled, 10**17)
    text = f"{whole}.{part:017d}".rstrip("0").rstrip(".")
    return (f"-{text}" if total < 0 and text != "0" else text).encode()


def _rounded(number: Fraction) -> Fraction:
    """The nearest number with 64 bits before its exponent."""
    if not number:
        return number
    shift = 64 - (number.numerator.bit_length() - number.denominator.bit_length())
    scale = Fraction(2) ** shift
    while abs(number * scale) >= 1 << 64:
        scale /= 2
    return Fraction(round(number * scale)) / scale

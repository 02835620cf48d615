"""The contract at the head of each script, read as a value; and what its body, with the parts it uses, really touches.

-- name: purpose, on as many lines as it takes
-- USES: part, part                      parts of common/ before it
-- KEYS 1 meta HASH                      one key: number, name, type
-- KEYS 8.. ready LIST, …                one for each of a list, from that number on
-- KEYS 8+topics.. waiting ZSET, …       a second such run, behind the first
-- KEYS 9 keys ZSET, where the engine has keys    behind all others, in such an engine only
-- KEYS 15.. ends HASH, …, where ends are kept     behind these, eight of them or none
-- ARGV 1 epoch                          likewise
-- RETURNS … -- ATOMIC … -- COST …
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from shardq.core.scripts import script

FOLDER = resources.files("shardq") / "lua"

NAMES = sorted(file.name.removesuffix(".lua") for file in FOLDER.iterdir() if file.name.endswith(".lua"))

OF_LANES = re.compile(r"^-- KEYS .*, where the engine has keys\n", re.MULTILINE)

OF_ENDS = re.compile(r"^-- KEYS (\S+) ends HASH, .*, where (?:ends are|the end is) kept\n", re.MULTILINE)

TYPES = {"HASH", "ZSET", "LIST", "SET", "STRING"}


@dataclass(frozen=True)
class Slot:
    """One line of KEYS or ARGV."""

    number: int
    """For a second run: the number it has when the first is empty."""
    many: bool
    name: str
    type: str


@dataclass(frozen=True)
class Contract:
    name: str
    title: str
    """The first word of the head."""
    purpose: str
    uses: list[str]
    keys: list[Slot]
    lanes: list[tuple[str, str, str]]
    """Number, name and type of the further keys in an engine that has keys."""
    ends: list[str]
    """The number of the first slot of the ring of ends, if it may be given that."""
    words: list[Slot]
    fields: set[str]
    """The other lines: RETURNS, ATOMIC, COST."""
    head: str
    body: str
    """Without comments; and without the parts."""
    whole: str
    """With the parts before it."""

    def counts(self, slots: list[Slot]) -> tuple[int, bool]:
        """How many at least, and whether more may follow."""
        return sum(not slot.many for slot in slots), any(slot.many for slot in slots)


def without_comments(text: str) -> str:
    return "\n".join(re.sub(r"\s*--.*", "", line) for line in text.splitlines())


def contract(name: str) -> Contract:
    text = (FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    head = "\n".join(line for line in text.splitlines()[: _head_length(text)])
    titled = re.match(r"-- (\w+): (\S[^\n]*(?:\n-- (?!USES: |KEYS )[^\n]*)*)", head)
    assert titled, f"{name}.lua does not begin with '-- {name}: purpose'"
    uses = re.findall(r"^-- USES: (.+)$", head, re.MULTILINE)
    assert len(uses) <= 1
    return Contract(
        name=name,
        title=titled[1],
        purpose=titled[2],
        uses=[part.strip() for part in uses[0].split(",")] if uses else [],
        keys=_slots(OF_ENDS.sub("", OF_LANES.sub("", head)), "KEYS"),
        ends=OF_ENDS.findall(head),
        lanes=re.findall(r"^-- KEYS (\d+(?:\+\S+)?) (\w+) (\w+), where the engine has keys$", head, re.MULTILINE),
        words=_slots(head, "ARGV"),
        fields=set(re.findall(r"^-- (RETURNS|ATOMIC|COST)\b", head, re.MULTILINE)),
        head=head,
        body=without_comments(text),
        whole=without_comments(script(name).text),
    )


def _head_length(text: str) -> int:
    return next(number for number, line in enumerate(text.splitlines()) if not line.startswith("--"))


def _slots(head: str, what: str) -> list[Slot]:
    slots = []
    for number, run, many, rest in re.findall(rf"^-- {what} (\d+)(\+\w+)?(\.\.)? (.+)$", head, re.MULTILINE):
        name, _, kind = rest.partition(" ")
        assert bool(many) or not run, f"a second run without '..': {rest}"
        slots.append(Slot(int(number), bool(many), name, kind.partition(",")[0].partition(" ")[0]))
    return slots


def touched(whole: str, what: str) -> set[int]:
    """The number of each KEYS[…] or ARGV[…] of a script; the least, where a loop goes through many.

    A loop counts by its first turn; what is not known before it runs counts as 0, as in a call with empty lists.
    """
    firsts: dict[str, int] = {}
    numbers: set[int] = set()
    for line in whole.splitlines():
        # of what lanes have, the six come last; `due` is told by its number; the ring is behind all
        line = re.sub(rf"\b{what}\[(LANES[^\]]*|ENDS[^\]]*|DUE)\]", "", line)
        if what == "KEYS":
            numbers |= {_value(due, {}) for due in re.findall(r"\blanes_from\([^,]+, (\d+)\)", line)}
        firsts |= dict.fromkeys(re.findall(r"\bfor (\w+), \w+ in ipairs\(", line), 1)
        for variable, first in re.findall(r"\bfor (\w+) = ([^,]+),", line):
            firsts[variable] = _value(first, firsts)
        numbers |= {_value(index, firsts) for index in re.findall(rf"\b{what}\[([^\]]+)\]", line)}
        numbers |= {int(first) for first in re.findall(rf"unpack\({what}, (\d+)[,)]", line)}
    return numbers


def _value(expression: str, firsts: dict[str, int]) -> int:
    terms = re.sub(r"#?[A-Za-z_]\w*", lambda word: str(firsts.get(word[0], 0)), expression)
    assert re.fullmatch(r"[\d\s+*()/-]+", terms), f"an index that is too clever for its test: {expression}"
    return int(eval(terms))  # digits and operators only

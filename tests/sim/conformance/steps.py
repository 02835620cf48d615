"""One step of a run, as a value that prints itself: a call of a script, or a plain command that plants something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    script: str
    """Empty for a plain command."""
    keys: tuple[bytes, ...]
    words: tuple[bytes, ...]
    """ARGV; of a plain command its name and arguments."""
    full: bool = False
    """The server has no memory left in this step."""
    read_only: bool = False
    denied: str = ""
    """A command that the user may not run in this step."""

    @property
    def on_server_clock(self) -> bool:
        """True if the script reads TIME itself."""
        at = NOW_AT.get(self.script)
        return at is not None and self.words[at : at + 1] == (b"",)

    @property
    def is_timed(self) -> bool:
        """True for a command whose answer is an instant of the server's clock."""
        return not self.script and self.words[0] == b"XADD"

    def __str__(self) -> str:
        faults = [
            *(["no memory"] if self.full else []),
            *(["read-only"] if self.read_only else []),
            *([f"no permission for {self.denied}"] if self.denied else []),
        ]
        words = " ".join(_shown(word) for word in self.words)
        keys = " ".join(_shown(key) for key in self.keys)
        what = f"{self.script}({keys}; {words})" if self.script else words
        return f"{what}  [{', '.join(faults)}]" if faults else what


def _shown(word: bytes) -> str:
    text = ascii(word.decode("latin-1"))[1:-1]
    text = text if len(text) <= 300 else f"{text[:300]}… ({len(word)} bytes)"
    return text if text and " " not in text and ";" not in text else f'"{text}"'


_UNDATED = ("declare", "open", "release", "set_schedule", "history")

NOW_AT: dict[str, int] = {"fleet": 0, "report": 2}
"""By script, where its ARGV has the now_us, counted from 0; all others have it second."""


def note_scripts(names: list[str]) -> None:
    for name in names:
        if name not in _UNDATED:
            NOW_AT.setdefault(name, 1)


@dataclass(frozen=True)
class Outcome:
    """What a side made of a step."""

    answer: Any
    messages: tuple[tuple[bytes, bytes], ...]
    """What was published on channels that somebody hears."""
    dump: Any
    """All keys afterwards: name, then type and content."""

"""The programs of the guides run as they stand there, and print what the guides say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import PACKAGE, printed

GUIDES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((PACKAGE / "guide").glob("*.md"))}

PROGRAMS = {
    name: found for name, text in GUIDES.items() if (found := re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}
"""The blocks of a guide are one program."""


@pytest.mark.slow
@pytest.mark.parametrize("guide", PROGRAMS)
def test_the_program_of_a_guide(guide: str, url: str, tmp_path: Path) -> None:
    out = printed("\n".join(PROGRAMS[guide]), url, cwd=tmp_path)
    assert [line for line in out.splitlines() if line not in GUIDES[guide]] == []


def test_guides_have_programs() -> None:
    assert len(PROGRAMS) >= 3

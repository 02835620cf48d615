"""The pages (README and others): links resolve, code is Python, named files exist, and the front page stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for folder in ("", "shardq", "tests", "bench", "cluster", ".github")
    for page in ((ROOT / folder).rglob("*.md") if folder else ROOT.glob("*.md"))
)
LONGEST_FRONT_PAGE = 150

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        assert "://" not in link, "pages name no host"
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_python(page: Path) -> None:
    for block in _FENCE.findall(page.read_text(encoding="utf-8")):
        compile(block, str(page), "exec")


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_FRONT_PAGE


def test_modules_named_in_the_architecture_exist() -> None:
    """The trees of one push, one due task and one resize name files from shardq/ on, or from the package above them."""
    text = (ROOT / "shardq/README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^ {4,}(?:[a-z_]+/)?([a-z_]+\.(?:py|lua)) ", text, re.MULTILINE))
    known = {path.name for path in (ROOT / "shardq").rglob("*") if path.suffix in (".py", ".lua")}
    assert names
    assert names <= known

"""What build.py does to texts: to pages, to docstrings, and to what mkdocs has made of them."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

REPOSITORY: str = PROJECT["urls"]["Source"]
"""Where links to files that are no pages lead."""

BRANCH = "main"

CONTENTS = "shardq/guide/README.md"
"""The list of the pages."""

COPIED = {".html", ".png", ".svg"}
"""The kinds of files that are no pages, and that the site has nevertheless."""

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_ITEM = re.compile(r"(?:[-*+]|\d+\.) +")
_LINK = re.compile(r'(?<=\]\()[^)\s]+(?=\))|(?<=href=")[^"]+|(?<=src=")[^"]+')
_NAMED = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)


# ---- pages


def target(page: str, link: str) -> str:
    """The file or folder that a link of a page means, from the top of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))


def contents(text: str, page: str = CONTENTS) -> dict[str, dict[str, str]]:
    """Section → page → title, of a list of pages: in each section of it, the links of its table. A link to a part of
    a page names no page.
    """
    sections: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        found = sections.setdefault(head.strip(), {})
        for title, link in _NAMED.findall(body):
            if "#" not in link:
                found.setdefault(target(page, link), title)
    return sections


def place(page: str) -> str:
    """Where a page is in the site: where it is in the repository, but for those of GitHub's own folder."""
    return posixpath.basename(page).lower() if page.startswith(".github/") else page


def destination(page: str, link: str, pages: set[str]) -> str:
    """What a link of a page is in the site."""
    if urlsplit(link).scheme or link.startswith("#"):
        return link
    wanted, _, anchor = link.partition("#")
    found = target(page, wanted)
    if f"{found}/README.md" in pages:
        found = f"{found}/README.md"
    if found in pages or posixpath.splitext(found)[1] in COPIED:
        path = posixpath.relpath(place(found), posixpath.dirname(place(page)) or ".")
        return f"{path}#{anchor}" if anchor else path
    kind = "tree" if (ROOT / found).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{BRANCH}/{found}"


def for_python(text: str) -> str:
    """Text without fenced code, as Python's Markdown reads it: what belongs to an item of a list is four characters
    further in than the item, and a bar within code in a table has no backslash.
    """
    lines, width = [], 0
    for line in _CODE.sub(lambda code: code[0].replace("\\|", "|"), text).split("\n"):
        item = _ITEM.match(line)
        if item:
            width = len(item[0])
        elif line and line[0] != " ":
            width = 0
        lines.append(" " * (4 - width) + line if width and line.startswith(" " * width) else line)
    return "\n".join(lines)


def links(text: str) -> list[str]:
    """The links of a page outside fenced code."""
    return [link for part in _FENCE.split(text)[::2] for link in _LINK.findall(part)]


def rewritten(page: str, text: str, pages: set[str]) -> str:
    """A page's text with the links of the site, as Python's Markdown reads it. Fenced code is left as it is."""
    parts = _FENCE.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = _LINK.sub(lambda link: destination(page, link[0], pages), for_python(parts[i]))
    return "".join(parts)


def titled(title: str) -> str:
    """A title for the navigation: without marks of code, and as a sentence begins."""
    plain = title.replace("`", "")
    return plain[:1].upper() + plain[1:]


# ---- docstrings


def with_blocks(text: str) -> str:
    """The docstring with each of its examples, which ends at an empty line, in a fence."""

    def fenced(found: re.Match[str]) -> str:
        lines = [line.removeprefix(found[1]) for line in found[0].splitlines()]
        return "\n".join(["", "```pycon", *lines, "```", ""])

    return _EXAMPLE.sub(fenced, text)


def sentence_first(text: str) -> str:
    """The docstring with its first sentence in a line of its own: that is what a list of members shows."""
    paragraph, gap, rest = text.partition("\n\n")
    if "```" in paragraph:
        return text
    first, space, others = re.sub(r"\s*\n\s*", " ", paragraph).partition(". ")
    return f"{first}.\n{others}{gap}{rest}" if space else f"{first}{gap}{rest}"


# ---- the site


def breakable(text: str) -> str:
    """HTML in which code in tables has places where a line may end: the name of a test is wider than a column."""

    def broken(word: re.Match[str]) -> str:
        return re.sub(r"(::|[_/.=,])(?=\w)", r"\1<wbr>", word[0])

    def in_code(code: re.Match[str]) -> str:
        return re.sub(r"[^\s<>]{18,}", broken, code[0])

    def in_cell(cell: re.Match[str]) -> str:
        return re.sub(r"<code>[^<]+</code>", in_code, cell[0])

    return re.sub(r"<td\b.*?</td>", in_cell, text, flags=re.DOTALL)

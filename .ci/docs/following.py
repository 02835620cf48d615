"""Follows every link of the site that build.py has made, also those that mkdocs has made itself."""

from __future__ import annotations

import html.parser
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Html(html.parser.HTMLParser):
    """The ids of a file of the site, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids.update(value for name, value in given.items() if name in ("id", "name"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag != "a":
            self.loaded += [given[name] for name in ("src", "href", "data") if name in given]


def faults(site: Path) -> list[str]:
    """The links of a site that lead nowhere, and what it loads from other hosts."""
    read = {file: Html(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in read.items():
        shown = file.relative_to(site)
        found += [f"{shown} loads {url}" for url in page.loaded if urlsplit(url).netloc]
        for link in [*page.links, *page.loaded]:
            url = urlsplit(link)
            if url.scheme or url.netloc or file.name == "404.html":  # its links begin at the top of the host
                continue
            other = Path(os.path.normpath(file.parent / unquote(url.path))) if url.path else file
            other = other / "index.html" if other.is_dir() else other
            if not other.is_file():
                found.append(f"{shown} links to {link}: there is no such file")
            elif url.fragment and other in read and unquote(url.fragment) not in read[other].ids:
                found.append(f"{shown} links to {link}: there is no such place in that page")
    return found

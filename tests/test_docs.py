"""``.ci/docs``: the list of the pages is complete, and what becomes of links and texts on the way to the site.

``make docs`` builds that, and follows its links; here is what can be tested without its packages.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import shardq
from tests.test_pages import PAGES

ROOT = Path(__file__).parents[1]
GENERATED = "bench/report/"

SOME = {"README.md", "shardq/README.md", "shardq/guide/workers.md", "shardq/outbox/README.md", ".github/SECURITY.md"}


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / ".ci/docs"))
    return importlib.import_module("build")


@pytest.fixture
def texts(docs: Any) -> Any:
    return importlib.import_module("texts")


def test_the_list_names_each_page(texts: Any) -> None:
    listed = texts.contents((ROOT / texts.CONTENTS).read_text(encoding="utf-8"))
    assert list(listed) == ["Start", "Use", "Operate", "Extend"]
    named = [page for section in listed.values() for page in section]
    pages = {str(page.relative_to(ROOT)) for page in PAGES}
    assert set(named) == {page for page in pages if not page.startswith(GENERATED)} - {texts.CONTENTS}
    assert len(named) == len(set(named)), "each once"


def test_a_list_of_pages(texts: Any) -> None:
    text = """# Pages\n\nof [another](../other.md)\n
## Use\n\n| page | |\n| --- | --- |\n| [`push`](push.md) | see [up](../README.md), [words](words.md#a) |\n
## Extend\n\n| [push](push.md) | again |\n"""
    assert texts.contents(text, "guide/README.md") == {
        "Use": {"guide/push.md": "`push`", "README.md": "up"},
        "Extend": {"guide/push.md": "push"},
    }
    assert texts.titled("`push` and more") == "Push and more"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README.md", "shardq/guide/workers.md#leases", "shardq/guide/workers.md#leases"),
        ("README.md", "shardq/outbox/", "shardq/outbox/README.md"),
        ("README.md", "#figures", "#figures"),
        ("README.md", "mailto:ann@example.org", "mailto:ann@example.org"),
        ("README.md", "shardq/flow.svg", "shardq/flow.svg"),
        ("shardq/guide/workers.md", "../../.github/SECURITY.md", "../../security.md"),
        (".github/SECURITY.md", "../shardq/guide/workers.md#leases", "shardq/guide/workers.md#leases"),
        (".github/SECURITY.md", "../README.md", "README.md"),
        ("shardq/guide/workers.md", "../../tests/test_pages.py", "REPOSITORY/blob/main/tests/test_pages.py"),
        ("shardq/guide/workers.md", "../../tests/sim", "REPOSITORY/tree/main/tests/sim"),
    ],
)
def test_where_a_link_leads(texts: Any, page: str, link: str, expected: str) -> None:
    assert texts.destination(page, link, SOME) == expected.replace("REPOSITORY", texts.REPOSITORY)


def test_a_page(texts: Any) -> None:
    fence = '```python\nx = "[no](link.py)"\n- no\n\n  item\n```\n'
    lists = "- an item\n\n  `its` text\n\nnone\n\n1. one\n\n       code\n"
    text = f"A [link](../../Makefile).\n\n{fence}\n{lists}\n| `int \\| str` |\n"
    made = texts.rewritten("shardq/guide/workers.md", text, SOME)
    assert made == (
        f"A [link]({texts.REPOSITORY}/blob/main/Makefile).\n\n{fence}\n- an item\n\n    `its` text\n\nnone\n\n"
        "1. one\n\n        code\n\n| `int | str` |\n"
    )


def test_a_docstring(texts: Any) -> None:
    text = "Pushes a task, and\nreturns its id. Or\nraises.\n\n>>> push(\n...     1)\n'id'\n\nMore:\n\n    >>> pop()\n"
    assert texts.sentence_first(texts.with_blocks(text)) == (
        "Pushes a task, and returns its id.\nOr raises.\n\n\n```pycon\n>>> push(\n...     1)\n'id'\n```\n\n\n"
        "More:\n\n\n```pycon\n>>> pop()\n```\n\n"
    )


def test_long_code_in_tables_may_be_broken(texts: Any) -> None:
    long = "<code>tests/test_pages.py::test_links</code>"
    assert texts.breakable(f"<p>{long}</p><td>{long} <code>dead_age</code></td>") == (
        f"<p>{long}</p><td><code>tests/<wbr>test_<wbr>pages.<wbr>py::<wbr>test_<wbr>links</code>"
        " <code>dead_age</code></td>"
    )


def test_the_reference_has_every_public_name(docs: Any) -> None:
    own = docs.exported(ROOT / "shardq/__init__.py")
    assert [name for names in own.values() for name in names] == [n for n in shardq.__all__ if n != "__version__"]
    assert all(own), "each has a heading"
    modules = docs.modules()
    assert {"errors", "testing", "outbox", "metrics", "otel", "http", "integrations.celery"} <= {
        module.removeprefix("shardq.") for module in modules
    }
    assert modules["shardq.testing"][1] == shardq.testing.__all__
    assert "Conflict" in modules["shardq.errors"][1]


def test_links_of_the_site_are_followed(docs: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text(
        '<h1 id="top"></h1><a href="../b.html#x">b</a><a href="http://x.example">x</a>'
    )
    (tmp_path / "b.html").write_text('<a href="a/#top">a</a><a href="a/#end">no</a><a href="c/">no</a>')
    (tmp_path / "d.html").write_text('<script src="//x.example/x.js"></script><img src="no.png">')
    assert docs.faults(tmp_path) == [
        "a/index.html links to ../b.html#x: there is no such place in that page",
        "b.html links to a/#end: there is no such place in that page",
        "b.html links to c/: there is no such file",
        "d.html loads //x.example/x.js",
        "d.html links to no.png: there is no such file",
    ]

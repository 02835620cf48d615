"""Tables on terminals of any width, and in locales of any encoding."""

from __future__ import annotations

import re

import pytest

from shardq import Engine, Task
from tests.cli.shell import Shell, own

WIDTHS = (50, 80, 120)

TABLES = (["stats"], ["shards"], ["topics"], ["list", "--state", "dead"], ["list", "--next"], ["forecast"])


@pytest.fixture
def full(engine: Engine) -> Engine:
    """With numbers of some length."""
    engine.push_many([Task(n, delay=3600) for n in range(12_345)])
    return engine


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_number_is_cut(shardq: Shell, full: Engine, columns: int) -> None:
    counts = [f"{shard.scheduled:,}" for shard in full.stats().shards]
    for command in ("stats", "shards"):
        done = shardq.on_terminal(command, columns=columns, rows=30)
        assert done.code == 0
        # what is said below the table may take more than one line
        assert max(len(line) for line in own(done.out).splitlines() if line.startswith(" ")) <= columns
        lines = done.out.splitlines()
        end = next(line.index("scheduled") for line in lines if "scheduled" in line) + len("scheduled")
        shown = dict(re.findall(r"^ +(\d+|all) .*?([\d,]+)$", "\n".join(line[:end] for line in lines), re.MULTILINE))
        assert shown == {str(n): count for n, count in enumerate(counts)} | {"all": "12,345"}
        assert "\N{HORIZONTAL ELLIPSIS}" not in done.out


@pytest.mark.slow
@pytest.mark.parametrize("columns", WIDTHS)
def test_columns_without_room_are_named(shardq: Shell, running: Engine, columns: int) -> None:
    running.push_many([Task(n, delay=3600) for n in range(12_345)])
    for command in ("topics", "fleet"):
        wide = shardq.on_terminal(command, columns=300, rows=30).out.split()
        titles = wide[: wide.index(next(word for word in wide if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" in word))]
        done = " ".join(shardq.on_terminal(command, columns=columns, rows=30).out.split())
        head, _, named = done.partition("no room for: ")
        assert all(word in head or word in named for word in titles)
        assert ("wider terminal and --json" in named) == any(word not in head for word in titles)
    assert "(default)" in shardq.run("topics").out


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoding", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_where_only_ascii_can_be_shown(shardq: Shell, full: Engine, encoding: dict[str, str]) -> None:
    full.pause("mail")
    id = full.push("\N{SNOWMAN}", headers={"k": "\N{SNOWMAN}"}, delay=3600)
    for words in (*TABLES, ["shards", "--json"], ["resize", "8", "--dry-run"], ["--help"], ["get", id]):
        done = shardq.run(*words, **encoding)
        assert done.code == 0, words
        assert done.out.isascii()
        assert "Traceback" not in done.err
    assert "\\u2603" in shardq.run("get", id, **encoding).out
    # JSON is UTF-8 everywhere
    assert shardq.run("get", id, "--json", **encoding).object["payload"] == "\N{SNOWMAN}"

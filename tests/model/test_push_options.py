"""The table of push options: one row an option. Each place that lists them is compared with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import click
import msgspec
import pytest

from shardq import AsyncEngine, Engine
from shardq.cli.output import in_options
from shardq.cli.push import push, push_file
from shardq.cli.push_lines import InputLine
from shardq.core.model.options import PushOptions, TaskOptions
from shardq.core.model.record import JSON
from shardq.core.model.task import Task
from shardq.core.producer.packing import Packer
from shardq.errors import BadInput
from shardq.worker.named import CallOptions

PAGE = Path(__file__).parents[2] / "shardq/core/producer/README.md"


class Row(NamedTuple):
    name: str
    wrong: Any
    """A value that is refused, of a task without other options."""
    error: str
    """Words of what is said then."""
    option: str
    """That of the commands."""
    lines: bool = True
    """True if ``push-file`` takes it as an option for all lines; each line may have any."""


ROWS = [
    Row("delay", -1, "delay can't be", "--delay"),
    Row("at", float("nan"), "at can't be", "--at"),
    Row("topic", "a topic", "topic can't be", "--topic"),
    Row("key", "a/b", "the key", "--key"),
    Row("id", "a/b", "the id", "--id", lines=False),
    Row("on_conflict", "replace", "on_conflict=", "--on-conflict"),
    Row("dedup", 5, "dedup=5", "--dedup"),
    Row("headers", {"a": 1}, "headers", "--header"),
    Row("max_attempts", 0, "max_attempts", "--max-attempts"),
    Row("expires", -1, "expires", "--expires"),
    Row("window", -1, "window", "--window"),
    Row("throttle", 5, "throttle=5", "--throttle"),
    Row("tags", ["a/b"], "tag", "--tag"),
]

NAMES = [row.name for row in ROWS]


def test_tasks_have_these_options_and_each_way_to_push_takes_them() -> None:
    assert list(TaskOptions.__struct_fields__) == NAMES
    assert list(get_type_hints(PushOptions).items()) == list(get_type_hints(TaskOptions).items())
    assert sorted(get_type_hints(CallOptions)) == sorted([*NAMES, "durability"])


@pytest.mark.parametrize("method", [Engine.push, AsyncEngine.push])
def test_the_engine_takes_them_with_the_same_defaults(method: Callable[..., Any]) -> None:
    keywords = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    ours = {field.name: field.default for field in msgspec.structs.fields(TaskOptions)}
    assert {p.name: p.default for p in keywords} == {**ours, "durability": None}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_each_is_checked_alone_and_among_many(row: Row) -> None:
    """Tasks without options are packed together: one whose option is forgotten there would lose it without an error."""
    packer = Packer(JSON, max_payload=100)
    wrong = Task("x", **{row.name: row.wrong})
    with pytest.raises(BadInput, match=row.error):
        packer.one(wrong)
    with pytest.raises(BadInput, match=f"^task 1 of this call: .*{row.error}"):
        packer.many([Task("x"), wrong])
    with pytest.raises(BadInput, match=f"^task 0 of this call: .*{row.error}"):
        packer.many([wrong, wrong])


@pytest.mark.parametrize(("command", "names"), [(push, NAMES), (push_file, [r.name for r in ROWS if r.lines])])
def test_the_commands_have_an_option_for_each(command: click.Command, names: list[str]) -> None:
    options = {param.name: param.opts for param in command.params}
    assert {name: options.get(name) for name in names} == {r.name: [r.option] for r in ROWS if r.name in names}


def test_a_line_of_push_file_has_them() -> None:
    assert list(InputLine.__struct_fields__) == ["payload", *NAMES]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_errors_of_commands_and_the_page_name_it(row: Row) -> None:
    assert in_options(f"{row.name}=5") == f"{row.option} 5"
    assert f"`{row.name}" in PAGE.read_text() or f" {row.name}=" in PAGE.read_text()

"""The table of push options, and each place that has them: the places that are written by hand have all of it, and an
option comes back from wherever it was given. No test names an option that is only one of many.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import pytest

from shardq import AsyncEngine, Engine, Every
from shardq.cli.every import every
from shardq.cli.output import in_options
from shardq.cli.push import push
from shardq.cli.transfer import import_lines
from shardq.core.model.arguments import in_fields
from shardq.core.model.record import JSON, decode_record
from shardq.core.model.task import Task, TaskInfo
from shardq.core.model.task_options import (
    CONTENT,
    OPTIONS,
    Content,
    ContentOptions,
    Kind,
    Option,
    PushOptions,
    StoredContent,
    TaskOptions,
)
from shardq.core.producer.packing import Packer
from shardq.errors import BadInput
from shardq.features.transfer.lines import PushLine, ToPush, read
from shardq.outbox.rows import RowPacker
from shardq.worker.named import CallOptions

PAGE = Path(__file__).parents[2] / "shardq/core/producer/README.md"

NAMES = [option.name for option in OPTIONS]
OF_CONTENT = [option.name for option in CONTENT]

GIVEN: dict[Kind, Any] = {"text": "words", "count": 3, "pairs": {"a": "b"}, "words": ["red", "blue"]}
"""A value of each kind that an option of the content has."""

GIVEN_AS: dict[str, Any] = {"url": "https://customer.example/in"}
"""A value of an option that takes not any of its kind."""

FLAGS = {option.name: f"--{option.word.replace('_', '-')}" for option in OPTIONS}

each_option = pytest.mark.parametrize("option", OPTIONS, ids=NAMES)
each_of_content = pytest.mark.parametrize("option", CONTENT, ids=OF_CONTENT)


def packer() -> Packer:
    return Packer(JSON, max_payload=100)


def stored(record: Any) -> Any:
    return decode_record(record).content


def given_as(option: Option) -> Any:
    return GIVEN_AS.get(option.name, GIVEN[option.kind])


def comes_back(option: Option) -> Any:
    """The same, as the record gives it back."""
    value = given_as(option)
    return tuple(value) if isinstance(value, list) else value


# ---- what is written by hand


def test_the_types_have_all_options() -> None:
    assert sorted(TaskOptions.__struct_fields__) == sorted(NAMES)
    hints = get_type_hints(TaskOptions)
    assert get_type_hints(PushOptions) == {name: hints[name] for name in get_type_hints(PushOptions)}
    assert get_type_hints(PushOptions).keys() == hints.keys()
    assert sorted(get_type_hints(CallOptions)) == sorted([*NAMES, "durability"])


def test_the_content_is_the_same_as_given_as_stored_and_as_shown() -> None:
    assert get_type_hints(ContentOptions) == get_type_hints(Content)
    assert {*OF_CONTENT} == {*Content.__struct_fields__} == {*StoredContent().named()}
    assert {*OF_CONTENT} <= {*TaskInfo.__struct_fields__}
    assert all(option.stored for option in CONTENT)
    assert not any(option.stored for option in OPTIONS if option not in CONTENT)


@pytest.mark.parametrize("method", [Engine.push, AsyncEngine.push])
def test_the_engine_takes_them_with_the_same_defaults(method: Callable[..., Any]) -> None:
    keywords = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    ours = {field.name: field.default for field in msgspec.structs.fields(TaskOptions)}
    assert {p.name: p.default for p in keywords} == {**ours, "durability": None}


@each_option
def test_the_page_has_it(option: Option) -> None:
    assert f"`{option.name}" in PAGE.read_text() or f" {option.name}=" in PAGE.read_text()


# ---- what goes by the table


@each_option
def test_each_is_checked_alone_and_among_many(option: Option) -> None:
    """Tasks without options are packed together: one whose option is forgotten there would lose it without an error."""
    nothing: Any = {option.name: object()}
    wrong = Task("x", **nothing)
    with pytest.raises(BadInput, match=option.name):
        packer().one(wrong)
    with pytest.raises(BadInput, match=f"^task 1 of this call: .*{option.name}"):
        packer().many([Task("x"), wrong])
    with pytest.raises(BadInput, match=f"^task 0 of this call: .*{option.name}"):
        packer().many([wrong, wrong])


@each_of_content
def test_the_content_comes_back_from_each_way_to_push(option: Option) -> None:
    given: Any = {option.name: given_as(option)}
    nothing: Any = {option.name: object()}
    task = Task("x", **given)
    alone, among = packer().one(task).fresh[2], packer().many([Task("x"), task]).fresh[5]
    own, row = packer().one(Task("x", id="own", **given)).unique[2], RowPacker().pack(task)["record"]
    for record in (alone, among, own, row):
        assert getattr(stored(record), option.name) == comes_back(option)
    assert getattr(Every(interval=5, **given), option.name) == given[option.name]
    with pytest.raises(BadInput, match=option.name):
        Every(interval=5, **nothing)


@pytest.mark.parametrize("decode", [True, False])
@each_of_content
def test_get_shows_the_content_of_pushes_and_of_schedules(engine: Engine, option: Option, decode: bool) -> None:
    given: Any = {option.name: given_as(option)}
    engine.every("often", interval=3600, **given)
    for id in (engine.push("x", delay=60, **given), engine.schedule("often").run()):
        info = engine.get(id, decode=decode)
        assert info is not None
        assert getattr(info, option.name) == comes_back(option)


def test_a_schedule_refuses_other_options(engine: Engine) -> None:
    with pytest.raises(TypeError, match="every has no argument queue=; write topic="):
        engine.every("often", interval=3600, queue="mail")  # type: ignore[call-arg]  # on purpose
    with pytest.raises(TypeError, match="every has no argument dedup="):
        engine.every("often", interval=3600, dedup=5)  # type: ignore[call-arg]  # on purpose


def test_attempts_of_a_recurring_task_are_those_of_its_recurrence(engine: Engine) -> None:
    for name, recurrence in (("own", Every(interval=3600, max_attempts=7)), ("of-the-function", Every(interval=3600))):
        engine.task(name=name, max_attempts=3, every=recurrence)(lambda: None)
    engine.start()
    found = [engine.get(engine.schedule(name).run()) for name in ("own", "of-the-function")]
    assert [info and info.max_attempts for info in found] == [7, 3]


@pytest.mark.parametrize(
    ("command", "names"), [(push, NAMES), (import_lines, [n for n in NAMES if n != "id"]), (every, OF_CONTENT)]
)
def test_the_commands_have_an_option_for_each(command: click.Command, names: list[str]) -> None:
    options = [param.opts for param in command.params]
    assert [name for name in names if [FLAGS[name]] not in options] == []


def test_a_line_of_import_has_them() -> None:
    assert list(PushLine.__struct_fields__) == ["payload", *NAMES]


@each_of_content
def test_a_line_brings_the_content(option: Option) -> None:
    text = json.dumps({"payload": 1, option.name: given_as(option)})
    line = read(text, defaults=Task(None), max_payload=1000)
    assert isinstance(line, ToPush)
    assert getattr(stored(packer().one(line.task).fresh[2]), option.name) == comes_back(option)


@each_option
def test_errors_of_commands_name_it(option: Option) -> None:
    assert in_options(f"{option.name}=5") == f"{FLAGS[option.name]} 5"
    assert in_fields(f"{option.name}=5") == f'"{option.name}": 5'

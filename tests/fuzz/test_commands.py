"""Command lines, and lines of JSON: a documented exit code, no traceback, nothing raw to the terminal; what is refused
is told with its place, and what stands beside it is done.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.server import Server
from shardq import Engine
from shardq.cli.app import PLACES, load
from tests.cli.shell import Done
from tests.fuzz import command
from tests.fuzz.nasty import EVIL, OBEYED, few, json_of, texts, words
from tests.support.servers import Servers

SERVING = {"demo", "run", "work", "top", "serve", "outbox run"}
"""Commands that go on until they are told to end: their options are read like those of the others."""

LASTING = {"--watch", "--wait"}

LONGEST_S = 30.0


def as_word(text: str) -> str:
    """The text as a word of a command line: no shell can pass zeros, nor halves of surrogate pairs but for bytes."""
    return text.encode(errors="surrogatepass").decode(errors="surrogateescape").replace("\0", "")


_texts = st.one_of(
    texts.map(as_word),
    st.sampled_from(
        ["\udcff", "-", "--", "-1", "--x", "1,000", "1_0", "٣", "0x10", "1e400", "-0", "a=b", "=", "a=\x1b[0m"]
    ),
)
_plausible = st.sampled_from(
    [
        "1",
        "30s",
        "1h30m",
        "mail",
        "mail/a",
        "0..1h",
        "2030-01-31T12:00:00Z",
        "dead",
        "keep",
        "500/s",
        "4KiB",
        "hour",
        "{}",
    ]
)
_values = st.one_of(_texts, _texts, _plausible)


def _commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in PLACES:
        loaded = load(name)
        of = loaded.commands.items() if isinstance(loaded, click.Group) else [("", loaded)]
        found |= {f"{name} {sub}".strip(): each for sub, each in of}
    return {name: each for name, each in found.items() if name not in SERVING}


COMMANDS = _commands()


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, and their values."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    given = name.split()
    arguments = [each for each in COMMANDS[name].params if isinstance(each, click.Argument)]
    options = [
        each for each in COMMANDS[name].params if isinstance(each, click.Option) and not LASTING.intersection(each.opts)
    ]
    for option in draw(st.lists(st.sampled_from(options), max_size=3, unique=True)) if options else ():
        if option.name in ("url", "name", "verbose"):  # with the last one errors have their traceback
            continue
        given.append(draw(st.sampled_from(option.opts)))
        if not option.is_flag:
            given.append(draw(_choices(option)))
    for argument in arguments:
        given += draw(st.lists(_choices(argument), max_size=2))
    if draw(st.integers(0, 9)) == 0:
        given.insert(draw(st.integers(0, len(given))), draw(_texts))
    if draw(st.booleans()):
        given.append("--json")
    return [*given, *(["--dry-run"] if name == "resize" else [])]


def _choices(parameter: click.Parameter) -> st.SearchStrategy[str]:
    if isinstance(parameter.type, click.Choice):
        return st.one_of(st.sampled_from([str(each) for each in parameter.type.choices]), _texts)
    return _values


def fine(done: Done) -> None:
    assert done.code in command.CODES, done
    for text in (done.out, done.err):
        assert "Traceback (most" not in text.replace(f"Traceback\n{EVIL}", ""), text
        assert not OBEYED.search(text), ascii(text)


@contextmanager
def shop(server: Server) -> Iterator[dict[str, str]]:
    """The variables of commands on an engine with some tasks."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with Engine(server.url, name=name, shards=2) as engine:
        engine.push(EVIL, delay=3600, topic="mail", id="a", tags=["red"])
        engine.every("nightly", cron="0 3 * * *", topic="mail", payload=EVIL)
    yield {"SHARDQ_URL": server.url, "SHARDQ_NAME": name, "SHARDQ_EMBEDDED": "never"}
    with Servers(server.url) as servers:
        for key in servers.held(name):
            servers.ask(0, "DEL", key)


def test_command_lines(single: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with shop(single) as environment:

        @few(80)
        @given(lines())
        def ends(line: list[str]) -> None:
            began = time.monotonic()
            fine(command.run(*line, environment=environment))
            assert time.monotonic() - began < LONGEST_S

        @few(15)
        @given(
            st.lists(_values, max_size=4),
            st.dictionaries(st.sampled_from(["SHARDQ_SHARDS", "SHARDQ_NAME", "SHARDQ_RUN_HTTP"]), _texts, max_size=1),
        )
        def is_not_understood(line: list[str], variables: dict[str, str]) -> None:
            fine(command.run(*line, environment=environment | variables))

        ends()
        is_not_understood()


_LINE = {
    "payload": {"a": 1},
    "delay": 3600,
    "topic": "mail",
    "id": "x",
    "on_conflict": "keep",
    "headers": {"a": "b"},
    "max_attempts": 3,
    "tags": ["red"],
}

_DEEP = b'{"payload":' + b"[" * 5000 + b"]" * 5000 + b"}"

_bad = st.one_of(
    json_of(_LINE),
    words,
    st.sampled_from(
        [_DEEP, b"\xef\xbb\xbf{}", b'{"payload":1,"delay":"1y"}', b'{"payload":1,"at":1e999}', b"\x00" * 9, b"{" * 90]
    ),
    st.builds(
        lambda field, text: msgspec.json.encode({"payload": 1, field: text}),
        st.sampled_from(["delay", "at", "id", "expires"]),
        _plausible,
    ),
)


def test_lines_of_json(single: Server, tmp_path: Path) -> None:
    """A line that is refused is told with its number; the good ones are stored."""
    path = tmp_path / "lines"
    with shop(single) as environment, Engine(single.url, name=environment["SHARDQ_NAME"]) as engine:

        @few(40)
        @given(st.lists(_bad.map(lambda line: line.replace(b"\n", b" ")), max_size=4), st.booleans())
        def is_read(bad: list[bytes], strict: bool) -> None:
            id = uuid.uuid4().hex
            good = json.dumps({"payload": "good", "delay": 3600, "id": id}).encode()
            path.write_bytes(b"\n".join([good, *bad, good]) + b"\n")
            words = ["import", str(path), "--json", *(["--strict"] if strict else [])]
            done = command.run(*words, environment=environment)
            fine(done)
            *told, account = [json.loads(line) for line in done.out.splitlines()]
            refused = [each["line"] for each in told if "error" in each]
            assert account["bad"] == len(refused)
            assert all(1 < number < len(bad) + 2 for number in refused)
            assert (done.code == 0) == (not refused), done
            if not (strict and refused):
                assert engine.get(id) is not None
                assert account["kept"] >= 1
                assert account["read"] == len(bad) + 2
            assert all(len(line) < 1000 for line in done.lines)
            engine.purge(everything=True)

        is_read()


def test_spool_commands(single: Server, tmp_path: Path) -> None:
    """Of files that are no spool."""
    with shop(single) as environment:

        @few(10)
        @given(
            st.one_of(st.binary(max_size=200), st.just(b"SQLite format 3\x00" + b"\xff" * 200)),
            st.sampled_from(["status", "replay", "failed"]),
        )
        def is_told(text: bytes, verb: str) -> None:
            path = tmp_path / "spool"
            path.unlink(missing_ok=True)
            path.write_bytes(text)
            fine(command.run("spool", verb, str(path), environment=environment))

        is_told()
        path = tmp_path / "other"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE other (a)")
        database.close()
        for verb in ("status", "replay", "failed"):
            fine(command.run("spool", verb, str(path), environment=environment))

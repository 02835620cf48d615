"""Each example of each help text is typed: all are understood, and those that end by themselves do what they say."""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Iterator
from itertools import filterfalse
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shardq import Engine
from shardq.cli.app import PLACES, app, load
from shardq.cli.options import Given
from tests.cli.ledger import lines
from tests.cli.shell import Shell
from tests.support.states import FAR_S, claim


def commands() -> Iterator[click.Command]:
    """All of them, and those within them."""
    waiting: list[click.Command] = [load(name) for name in PLACES]
    for command in waiting:
        yield command
        waiting += command.commands.values() if isinstance(command, click.Group) else ()


def blocks() -> Iterator[str]:
    """What stands under the options: examples, and files."""
    for command in commands():
        yield from (command.epilog or "").replace("\b\n", "").split("\n\n")


def examples() -> Iterator[str]:
    """The commands of the examples, as they are typed: without the words behind them, and without other programs."""
    for block in [*blocks(), *(app.epilog or "").replace("\b\n", "").split("\n\n")]:
        for line in block.split("\n")[1:] if block.startswith("example:") else ():
            text = re.sub(r"  +[^'\"]*$", "", line.strip())
            words = shlex.shlex(text, posix=True, punctuation_chars="|&>")
            words.whitespace_split, words.commenters = True, ""
            found: list[str] = []
            for word in [*words, "|"]:
                if word and set(word) <= set("|&>"):
                    if found[:1] == ["shardq"]:
                        yield shlex.join(found)
                    found = []
                else:
                    found.append(word)


EXAMPLES = [*dict.fromkeys(examples())]

STAYS = re.compile(r"shardq (demo|run|work|top|serve|outbox run|import -|far|deploy .*--wheel)|.*--watch")
"""Those that go on until they are ended, take long, or need more than a server of Redis: their own tests run them."""

ENDS_WITH_1 = re.compile(r"shardq (stats|health|doctor|spool status|get AZr|cancel AZr)")
"""Those that judge an engine or a spool, which are not well here; and those that name a task that is not there."""

DATABASE, SPOOL = "postgresql://app@127.0.0.1/shop", "/var/lib/shop/orders.spool"
SERVERS = ("redis://127.0.0.1:6379/0", "redis://old:6379/0", "redis://new:6379/0")
"""As the examples have them."""


def test_examples_are_found() -> None:
    assert len(EXAMPLES) > 100
    assert "shardq list --state dead --all --json" in EXAMPLES
    assert "shardq push '{\"order\": 42}' --delay 30m" in EXAMPLES


def test_every_example_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("topics.toml", "shardq-0.1.0-py3-none-any.whl"):
        (tmp_path / file).touch()
    monkeypatch.setenv("SHARDQ_DATABASE", DATABASE)  # the first example exports it
    for command in commands():
        if not isinstance(command, click.Group):
            monkeypatch.setattr(command, "callback", lambda *args, **options: None)
    for example in EXAMPLES:
        done = CliRunner().invoke(app, shlex.split(example)[1:], prog_name="shardq", obj=Given())
        assert done.exit_code == 0, f"{example}: {done.output}"


@pytest.fixture
def world(shardq: Shell, engine: Engine, tmp_path: Path) -> dict[str, str]:
    """What the examples take for granted. Returns their words → those of here."""
    shardq.cwd = tmp_path
    tasks = lines({"payload": n, "delay": FAR_S} for n in range(3))
    (tmp_path / "tasks.jsonl").write_text(tasks)
    (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(tasks.encode()))
    for block in blocks():
        if found := re.match(r"example of ([\w.]+):\n", block):
            (tmp_path / found[1]).write_text(re.sub(r"  +\(.*\)$", "", block[found.end() :], flags=re.MULTILINE))
    for name in ("orders", "ordres"):
        Engine(shardq.environment["SHARDQ_URL"], name=name, shards=1).open().close()
    engine.start()
    engine.push("x", topic="webhook", key="customer-7")
    spool = str(tmp_path / "orders.spool")
    with Engine("redis://127.0.0.1:1", name=engine.name, spool=spool, timeout=0.1, connect_timeout=0.1) as away:
        away.push("spooled", delay=FAR_S)
    shardq.environment["SHARDQ_DATABASE"] = database = f"sqlite:///{tmp_path / 'shop.db'}"
    return {DATABASE: database, SPOOL: spool} | dict.fromkeys(SERVERS, shardq.environment["SHARDQ_URL"])


@pytest.mark.slow
def test_every_example_that_ends_does_so(shardq: Shell, engine: Engine, world: dict[str, str]) -> None:
    for example in filterfalse(STAYS.match, EXAMPLES):
        if engine.get("email/welcome-7") is None:
            engine.push("x", topic="email", id="welcome-7", delay=FAR_S)
        if example.startswith("shardq requeue email"):
            engine.reschedule("email/welcome-7", delay=0)
            consumer = engine.consumer("email")
            while (dead := engine.get("email/welcome-7")) is None or dead.state != "dead":
                consumer.bury(claim(consumer, 1), "of no use")
        if example.startswith("shardq resize"):
            shardq.run("purge", "--everything", "--yes")  # --wait waits for ready tasks, too
        words = [world.get(word, word) for word in shlex.split(example)[1:]]
        done = shardq.run(*words)
        if "no terminal to ask for confirmation" in done.err:
            done = shardq.run(*words, "--yes")
        assert done.code == 0 or (done.code == 1 and ENDS_WITH_1.match(example)), f"{example}: {done}"
        assert "error:" not in done.err.lower(), f"{example}: {done}"

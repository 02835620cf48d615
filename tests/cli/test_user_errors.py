"""A user's mistake is answered by one line and an exit code, without a traceback or a password."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.ports import HOST
from shardq.cli.app import GROUPS, PLACES, app
from tests.cli.shell import LONGEST_S, Shell

COMMANDS = (
    *(
        "demo",
        "run",
        "push",
        "import",
        "get",
        "list",
        "forecast",
        "cancel",
        "reschedule",
        "requeue",
        "every",
        "forward",
    ),
    *("stats", "health", "doctor", "config", "topics", "shards", "resize", "purge", "pause"),
    *("resume", "limit", "acl"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], prog_name="shardq")
    assert done.exit_code == 0
    assert f"Usage: shardq {command}" in done.output
    assert "example:" in done.output
    assert f"    shardq {command}" in done.output
    assert all(f"  {option}" in done.output for option in ("--url", "--json", "-v, --verbose"))
    # a demo has a name that nobody else has, and no default server
    default = "Default: $SHARDQ_URL" in " ".join(done.output.split())
    assert ("  --name" in done.output) == default == (command != "demo")


def test_help_has_every_command_in_one_group_and_version_says_which(shell: Shell) -> None:
    help = shell.run("--help").out
    assert "\b" not in help
    listed = help[help.index("\nRun:\n") :].split("\nexample:")[0]
    groups = re.findall(r"^(\w+):\n((?:  .*\n)+)", listed, re.MULTILINE)
    assert [title for title, _ in groups] == ["Run", "Push", "Look", "Change", "Operate"]
    assert "..." not in listed, "no line of a command is cut"
    lines = [line for _, block in groups for line in block.splitlines()]
    assert [line.split()[0] for line in lines] == [*PLACES]
    assert len({line.index(line.split(maxsplit=1)[1]) for line in lines}) == 1, "their texts stand below each other"
    assert sum(map(len, GROUPS.values())) == len(PLACES)
    assert shell.run("--version").out.startswith("shardq 0.")


def test_a_misspelt_command_is_told_the_nearest(shell: Shell) -> None:
    done = shell.run("stat")
    assert (done.code, "Did you mean 'stats'?" in done.err) == (2, True)


def test_a_command_loads_no_other() -> None:
    code = (
        "import sys; import shardq.cli.app; from shardq.cli.app import load; load('stats'); "
        "sys.exit('shardq.cli.run' in sys.modules or 'shardq.cli.push' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_help_needs_neither_rich_nor_asyncio() -> None:
    code = (
        "import sys; from shardq.cli.app import PLACES, load; [load(name) for name in PLACES]; "
        "sys.exit('rich' in sys.modules or 'asyncio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from shardq.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: the shardq command needs {missing}: pip install 'shardq[cli]'\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["demo", "--url", ""], "Invalid value for '--url': it is empty; is the variable set that it is taken from?"),
        (["push", "not json"], "the payload is not JSON"),
        (["push", "1", "--delay", "soon"], "'soon' is not a length of time"),
        (["push", "1", "--delay", "-5"], "is not a length of time"),
        (["push", "1", "--at", "2030-01-01"], "has no time zone"),
        (["push", "1", "--header", "x"], "'x' is not a header"),
        (["push", "1", "--url", "http://x"], "this scheme 'http' is not understood"),
        (["push", "1", "--name", "a b"], "the name of an engine can't be 'a b'"),
        (["push", "1", "--url", "embedded://", "--topic", "a b"], "a topic can't be 'a b'"),
        (["push", "1", "--url", "embedded://", "--dedup", "5"], "error: --dedup 5.0 was given without --id; "),
        (["push", "1", "--url", "embedded://", "--id", "a/b"], "replace them, and give the topic as --topic"),
        (
            ["push", "1", "--url", "embedded://", "--max-attempts", "0"],
            "'--max-attempts': 0 is not in the range 1<=x<=",
        ),
        (
            ["push", "1", "--url", "embedded://", "--delay", "1h", "--expires", "1m"],
            "error: --expires 60.0 is not after",
        ),
        (["reschedule", "x"], "give the new due time"),
        (["forward", "x"], "give the list"),
        (["forward", "x", "--to", "y", "--off"], "give the list"),
        (["stats", "--watch", "0"], "--watch"),
        (["demo", "--name", "x"], "a name of its own"),
        (["run", "--shards", "0"], "--shards"),
        (["run", "--shards", "1,000"], "'1,000' is not a whole number; write it without separators, as 1000"),
        (["list", "--limit", "1_000"], "'1_000' is not a whole number; write it without separators, as 1000"),
        (["resize", "many"], "'many' is not a whole number"),
        (["push", "1", "--max-attempts", "1.5"], "'1.5' is not a whole number"),
        (["demo", "--seconds", "1,000.5"], "'1,000.5' is not a number; write it without separators, as 1000.5"),
        (["demo", "--seconds", "nan"], "'nan' is not a number"),
        (["limit", "x", "--rate", "nan"], "'nan' is not a rate above 0; write tasks for each s, min, h or day"),
        (["push", "1", "--delay", "1,000"], "'1,000' is not a length of time"),
        (["push", "1", "--dealy", "5"], "--delay"),
        (["cancel"], "give the ids of tasks, or say by --topic and the like which are to be cancelled, or --all"),
        (["cancel", "x", "--all"], "give the ids of tasks, or say by --topic"),
        (["cancel", "x", "--topic", "mail"], "give the ids of tasks, or say by --topic"),
        (["cancel", "x", "--dry-run"], "--dry-run goes with --topic and the like"),
        (["cancel", "--all", "--topic", "mail"], "--all is for all tasks: leave it out, or --topic"),
        (["cancel", "--topic", "mail"], "there is no terminal to ask for confirmation on: add --yes, or --dry-run"),
        (["cancel", "--tag", "a/b", "--yes", "--url", "embedded://"], "the tag 'a/b' has '/' at position 1"),
        (["cancel", "--tag", "a", "some-id", "--yes"], "give the ids of tasks, or say by --topic"),
        (["cancel", "--state", "leased"], "'leased' is not one of 'scheduled', 'held', 'ready', 'dead'"),
        (["cancel", "--state", "dead", "--due", "..0"], "--due goes with --state scheduled, or none"),
        (["reschedule", "--state", "dead", "--delay", "5"], "'dead' is not one of 'scheduled', 'held', 'ready'"),
        (["reschedule", "--all", "--delay", "5"], "there is no terminal to ask"),
        (["requeue"], "give the ids of tasks, or say by --topic and the like which are to be requeued, or --all"),
        (["list", "--due", "1h"], "'1h' is not a range; write FROM..TO"),
        (["list", "--due", ".."], "'..' is not a range"),
        (["list", "--due", "soon.."], "'soon' is not a length of time"),
        (["list", "--due", "2030-01-31.."], "has no time zone"),
        (["list", "--state", "ready", "--due", "..0"], "--due goes with --state scheduled, or none"),
        (["list", "--state", "ready", "--holder", "x"], "--holder goes with --state leased, or none"),
        (["list", "--limit", "5", "--all"], "give --limit N, or --all"),
        (["list", "--state", "gone"], "'gone' is not one of 'scheduled', 'held', 'ready', 'leased', 'dead'"),
        (["list", "--limit", "0"], "0 is not in the range x>=1"),
        (["forecast", "year"], "'year' is not one of 'hour', 'day', 'month'"),
        (["forecast", "--capacity", "much"], "'much' is not a rate above 0; write tasks for each s, min"),
        (["forecast", "--capacity", "0"], "'0' is not a rate above 0"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_exit_code_2(shell: Shell, words: list[str], message: str) -> None:
    done = shell.run(*words)
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody listens there, and nobody can."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


@pytest.mark.slow
def test_a_server_that_is_not_there(shell: Shell, port: int) -> None:
    commands = (
        ["push", "1"],
        ["import", "-"],
        ["get", "x"],
        ["cancel", "x"],
        ["reschedule", "x", "--delay", "5"],
        ["forward", "x", "--off"],
        ["stats"],
        ["run"],
        ["demo"],
    )
    # at once: each tries for some seconds
    running = [shell.start(*words, "--url", f"redis://someone:sesame@127.0.0.1:{port}/0") for words in commands]
    for process, words in zip(running, commands, strict=True):
        out, err = process.communicate(timeout=LONGEST_S)
        assert process.returncode == 1, words
        line = err.splitlines()[-1]
        assert line.startswith(f"error: redis://someone:***@127.0.0.1:{port}: could not connect"), words
        assert "Traceback" not in err
        assert "sesame" not in out + err


@pytest.mark.slow
def test_a_traceback_only_when_asked_for_and_never_a_password(shell: Shell, port: int) -> None:
    done = shell.run("stats", "-v", "--url", f"redis://someone:sesame@127.0.0.1:{port}/0")
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("error: redis://someone:***@")
    assert "sesame" not in done.err


def test_without_a_url_it_uses_the_embedded_server_and_says_so(shell: Shell, home: Path) -> None:
    done = shell.run("push", "1", "--delay", "1h")
    assert done.code == 0
    made, line = done.err.splitlines()
    assert made.startswith("there was no engine named 'default' at the embedded server")
    said = (
        "neither a url nor $SHARDQ_URL is given, so an embedded server of this user and machine is used, with its data "
        f"in {home / 'data' / 'shardq'}: "
    )
    assert line.startswith(f"warning: {said}")
    seen = shell.run("stats", "--json").object
    assert seen["scheduled"] == 1
    assert [warning for warning in seen["warnings"] if warning.startswith(said)]
    assert f"server       WRONG: {said}" in shell.run("doctor").out
    done = shell.run("health")
    assert done.err.count(said) == 1


def test_an_embedded_server_that_is_asked_for_is_no_surprise(shell: Shell) -> None:
    done = shell.run("push", "1", "--delay", "1h", "--url", "embedded://", SHARDQ_EMBEDDED="never")
    assert done.code == 0
    assert done.err.startswith("there was no engine named 'default' at the embedded server")
    assert done.err.count("\n") == 1
    (only,) = shell.run("stats", "--json", "--url", "embedded://").object["warnings"]
    assert only.startswith("no dispatcher runs")


def test_an_embedded_server_can_be_forbidden(shell: Shell, home: Path) -> None:
    for words in (("push", "1"), ("health",), ("stats",), ("run",)):
        done = shell.run(*words, SHARDQ_EMBEDDED="never")
        assert done.code != 0
        said = done.out + done.err
        assert "no server is named: give a url, or set $SHARDQ_URL; SHARDQ_EMBEDDED=never forbids" in said
    assert not (home / "data" / "shardq").exists()


def test_options_count_before_and_after_the_command(shardq: Shell, url: str, name: str) -> None:
    assert shardq.run("--json", "push", "1", "--id", "a", "--delay", "1h").object["id"] == "a"
    before = shardq.run("--url", url, "--name", name, "--json", "get", "a", SHARDQ_URL="", SHARDQ_NAME="")
    after = shardq.run("get", "a", "--url", url, "--name", name, "--json", SHARDQ_URL="", SHARDQ_NAME="")
    over = shardq.run("--url", url, "get", "a", "--name", name, "--json", SHARDQ_URL="redis://nowhere", SHARDQ_NAME="x")
    assert before.object == after.object == over.object
    assert before.object["state"] == "scheduled"

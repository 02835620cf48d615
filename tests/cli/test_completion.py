"""Completion in a shell: the line of the help sets it up, and it knows topics, engines and states."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from shardq import Engine
from tests.cli.shell import LONGEST_S, SCRIPT, Shell

Completed = Callable[..., list[str]]


@pytest.fixture
def completed(shardq: Shell) -> Completed:
    """What the command offers for the last word of a line, as bash asks it."""

    def completed(line: str, **variables: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        done = shardq.run(**words, _SHARDQ_COMPLETE="bash_complete", **variables)
        assert (done.code, done.err) == (0, "")
        return [offer.removeprefix("plain,") for offer in done.lines if offer]

    return completed


@pytest.mark.slow
def test_topics_engines_and_states_are_completed(completed: Completed, engine: Engine, url: str) -> None:
    for topic in ("mail", "mail.bulk", "invoice", ""):
        engine.push("x", topic=topic, delay=3600)
    assert completed("shardq list --topic ") == ["invoice", "mail", "mail.bulk"]
    assert completed("shardq pause ma") == ["mail", "mail.bulk"]
    assert completed("shardq push 1 --topic i") == ["invoice"]
    for line in ("shardq --name ", "shardq stats --name ", "shardq engines --remove "):
        assert engine.name in completed(line + engine.name[:-1])
    assert completed(f"shardq --url {url} --name {engine.name} limit inv", SHARDQ_NAME="other") == ["invoice"]
    assert completed("shardq list --state d") == ["dead", "done"]
    assert completed("shardq req") == ["requeue"]


@pytest.mark.slow
def test_nothing_is_completed_made_or_said_where_nothing_is_known(completed: Completed, engine: Engine) -> None:
    nobody = f"{engine.name}-2"
    assert completed("shardq list --topic ", SHARDQ_NAME=nobody) == []
    assert completed(f"shardq --name {nobody}") == [], "it was not created"
    assert completed("shardq list --topic ", SHARDQ_URL="") == [], "no server of one's own is started"


@pytest.mark.slow
def test_the_line_of_the_help_sets_it_up(shardq: Shell, engine: Engine) -> None:
    engine.push("x", topic="mail", delay=3600)
    [line] = re.findall(r"^ *(eval .*bash_source.*?)  ", shardq.run("--help").out, re.MULTILINE)
    typed = f"""
        {line}
        COMP_WORDS=(shardq list --topic m) COMP_CWORD=3
        _shardq_completion shardq
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{SCRIPT.parent}:{shardq.environment['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", typed],
        env=shardq.environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("mail\n", "")

"""Settings come from pyproject.toml, the environment and flags, in this order; the last counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardq import Engine
from shardq.cli.app import PLACES, app, load
from shardq.cli.config import WITH_SETTINGS, read_file, settings_of
from shardq.errors import BadInput
from tests.cli.shell import Shell

SECRET = "secret"

FILE = """
[tool.shardq]
url = "redis://user:secret@127.0.0.1:1"
name = "orders"
shards = 32

[tool.shardq.run]
quiet = true
processes = 2

[tool.shardq.work]
processes = 4
topics = ["mail", "invoice"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of settings; the current directory is further down, beside a file of another tool."""
    below = tmp_path / "source"
    below.mkdir()
    (below / "pyproject.toml").write_text("[tool.other]\nshardq = 1\n")
    monkeypatch.chdir(below)
    for variable in ("SHARDQ_URL", "SHARDQ_NAME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "pyproject.toml").write_text(FILE)
    return tmp_path / "pyproject.toml"


def read() -> dict[str, Any]:
    path, values = read_file(lambda name: load(name) if name else app)
    assert path.name == "pyproject.toml"
    return values


def test_the_file_is_the_default_of_options(project: Path) -> None:
    assert read() == {
        "url": "redis://user:secret@127.0.0.1:1",
        "name": "orders",
        "shards": 32,
        "run": {"quiet": True, "processes": 2},
        "work": {"processes": 4, "topics": "mail,invoice"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.shardq]\nurll = 1", r"pyproject.toml \[tool.shardq\] has no 'urll'; did you mean 'url'\?"),
        ("[tool.shardq.rum]\nx = 1", r"has no 'rum'; did you mean 'run'\?"),
        ("[tool.shardq.run]\nproceses = 1", r"\[tool.shardq.run\] has no 'proceses'; did you mean 'processes'\?"),
        ("[tool.shardq.run]\nzzz = 1", "has no 'zzz'; there is processes, http, quiet"),
        ("[tool.shardq]\nrun = 1", r"run is a table: write \[tool.shardq.run\]"),
        ("[tool.shardq.run]\nprocesses = 0", "0 is not in the range 1<=x<=1000"),
        ("[tool.shardq.run]\nprocesses = 1.5", r"processes in .*toml \[tool.shardq.run\]: '1.5' is not a whole number"),
        ("[tool.shardq.run]\nprocesses = true", "True is not possible; write a value"),
        ("[tool.shardq.run]\nquiet = 1", "1 is not possible; write true or false"),
        ("[tool.shardq]\nname = 'a b'", "the name of an engine can't be 'a b'"),
        ("[tool.shardq]\nname = {a = 1}", "a dict is not possible"),
        ("[tool.shardq]\nurl = 'http://u:secret@x'", "this scheme 'http' is not understood; allowed are"),
        ("[tool]\nshardq = 1", r"write a table, \[tool.shardq\]"),
        ("[tool.shardq", "pyproject.toml is no TOML: "),
    ],
)
def test_what_can_not_be_set(project: Path, text: str, message: str) -> None:
    project.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        read()
    assert SECRET not in str(caught.value)
    assert str(project) in str(caught.value)


def test_a_variable_that_is_wrong(shell: Shell, project: Path) -> None:
    shell.cwd = Path.cwd()
    done = shell.run("run", SHARDQ_RUN_PROCESSES="many")
    assert (done.code, done.out) == (2, "")
    assert "'--processes' (env var: 'SHARDQ_RUN_PROCESSES'): 'many' is not a whole number" in done.err


def test_the_commands_with_settings_are_known() -> None:
    having = [name for name in PLACES if settings_of(load(name))]
    assert having == list(WITH_SETTINGS)
    for name in having:
        variables = {each.envvar for each in settings_of(load(name)).values()}
        assert variables == {f"SHARDQ_{name}_{each}".upper() for each in settings_of(load(name))}


def test_config_shows_values_and_where_they_come_from(shell: Shell, project: Path) -> None:
    shell.cwd = Path.cwd()
    variables = {"SHARDQ_WORK_PROCESSES": "8", "SHARDQ_WORK_CONCURRENCY": "", "SHARDQ_NAME": "other"}
    done = shell.run("config", "--json", "--name", "mine", **variables)
    assert SECRET not in done.out
    shown = {each["setting"]: each for each in done.objects}
    file = str(project)
    expected = {
        "url": ("redis://user:***@127.0.0.1:1", f"{file} [tool.shardq]"),
        "name": ("mine", "--name"),
        "shards": (32, f"{file} [tool.shardq]"),
        "run.quiet": (True, f"{file} [tool.shardq.run]"),
        "run.processes": (2, f"{file} [tool.shardq.run]"),
        "work.processes": (8, "$SHARDQ_WORK_PROCESSES"),
        "work.concurrency": (None, "default"),
    }
    assert {name: (shown[name]["value"], shown[name]["from"]) for name in expected} == expected
    assert shown["work.processes"]["variable"] == "SHARDQ_WORK_PROCESSES"
    done = shell.run("config", "--json", **variables)
    (own_name,) = [each for each in done.objects if each["setting"] == "name"]
    assert (own_name["value"], own_name["from"]) == ("other", "$SHARDQ_NAME"), "which counts more than the file"
    project.write_text("[tool.shardq]\nnmae = 'x'\n")
    done = shell.run("config")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'name'?" in done.err


def test_commands_use_them(shell: Shell, project: Path, url: str, name: str) -> None:
    shell.cwd = Path.cwd()
    project.write_text(f'[tool.shardq]\nurl = "{url}"\nname = "{name}"\nshards = 3\n')
    id = shell.run("push", "1", "--delay", "1h").out.strip()
    with Engine(url, name=name, shards=3) as engine:
        assert engine.topology.shards == 3
        assert engine.get(id) is not None


@pytest.mark.parametrize("words", [["shards"], ["far", "status"]])
def test_a_setting_with_the_name_of_a_command_is_none_of_the_command(
    shardq: Shell, engine: Engine, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.shardq]\nshards = 32\nfar = "far.sqlite"\n')
    shardq.cwd = tmp_path
    done = shardq.run(*words)
    assert (done.code, "Traceback" in done.err) == (0, False)

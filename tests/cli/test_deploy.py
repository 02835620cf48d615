"""deploy prints the deployment files, and writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardq.cli.deploy import KINDS
from tests.cli.shell import Shell

ROOT = Path(__file__).parents[2] / "cluster" / "deploy"


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_kind(tmp_path: Path, kind: str) -> None:
    shell = Shell(tmp_path, {})
    printed = shell.run("deploy", kind, "--print")
    written = shell.run("deploy", kind, "--to", str(tmp_path / "mine"))
    assert (printed.code, written.code) == (0, 0)
    files = [Path(line) for line in written.out.splitlines()]
    assert files
    for path in files:
        source = ROOT / path.relative_to(tmp_path / "mine")
        assert path.read_text() == source.read_text()
        assert all(line in printed.out for line in source.read_text().splitlines())
    again = shell.run("deploy", kind, "--to", str(tmp_path / "mine"))
    assert (again.code, "nothing is written" in again.err) == (1, True)


def test_one_way_is_chosen(tmp_path: Path) -> None:
    for words in ((), ("--print", "--to", "mine")):
        done = Shell(tmp_path, {}).run("deploy", "systemd", *words)
        assert (done.code, "one of --print and --to" in done.err) == (2, True)

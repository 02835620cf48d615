"""The Makefile runs the product in an environment that is the same on every machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.tiers import AT_EACH_CHANGE

ROOT = Path(__file__).parents[1]

NEEDED = {"HOME", "PATH"}
LET_THROUGH = {"https_proxy": "http://127.0.0.1:9", "PIP_INDEX_URL": "file:///a b", "SSL_CERT_DIR": "/certs", "CI": "1"}
KEPT_OUT = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "SHARDQ_URL": "redis://127.0.0.1:9", "LINES": "7"}


@pytest.mark.parametrize(("target", "all_of_it"), [("demo", False), ("test", True), ("bench", True), ("check", True)])
def test_the_demo_installs_what_it_runs_and_nothing_else(target: str, all_of_it: bool, tmp_path: Path) -> None:
    words = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}/venv", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "'.[embedded,cli]'" in done.stdout
    assert ("--group dev" in done.stdout) == all_of_it


@pytest.mark.parametrize(
    "target", ["test", "test-all", "test-browser", "test-lowest", "test-highest", "demo", "bench", "bench-guard"]
)
def test_variables_of_one_machine_do_not_reach_what_is_run(target: str) -> None:
    environment = {name: os.environ[name] for name in NEEDED} | LET_THROUGH | KEPT_OUT
    words = ["make", "--dry-run", "--no-print-directory", target]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    line = done.stdout.splitlines()[-1]
    assert re.search(r"bin/(python -m (pytest|bench)|shardq demo)", line), "it is the one that runs something"
    variables = re.match(r"env -i ((?:\w+=\"\$\w+\" )+)\.venv", line)
    assert variables, line
    assert set(re.findall(r"(\w+)=", variables[1])) == NEEDED | set(LET_THROUGH)
    shown = subprocess.run(
        f"env -i {variables[1]} env", shell=True, env=environment, capture_output=True, text=True, check=True
    )
    assert LET_THROUGH.items() <= dict(each.split("=", 1) for each in shown.stdout.splitlines()).items()


def test_another_python_has_an_environment_of_its_own(tmp_path: Path) -> None:
    for file in ("Makefile", "pyproject.toml"):
        (tmp_path / file).symlink_to(ROOT / file)
    same, other = tmp_path / "same", tmp_path / "other"
    for python, version in ((same, "3.12"), (other, "3.99")):
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
    home = tmp_path / ".venv/bin/python"
    home.parent.mkdir(parents=True)
    home.symlink_to(same)

    def where(*words: str) -> str:
        command = ["make", "--dry-run", "--no-print-directory", "test", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        found: list[str] = re.findall(r"(\S+)/bin/python -m pytest", done.stdout)
        return found[-1]

    assert where() == ".venv"
    assert where(f"PYTHON={same}") == ".venv"
    assert where(f"PYTHON={other}") == ".venv-3.99"


def test_the_tests_of_each_change_are_chosen_in_one_way() -> None:
    assert f"QUICK := {AT_EACH_CHANGE}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")

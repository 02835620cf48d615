"""A program loads no asyncio that it has not asked for, and all names are there nevertheless."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import shardq
from shardq import consumer, engine, worker


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_an_engine_for_threads_loads_nothing_for_asyncio() -> None:
    loaded = printed(
        """
import sys, shardq
engine = shardq.Engine("redis://127.0.0.1:1")
worker = engine.worker()
print(*(name for name in ("asyncio", "redis", "sqlite3") if name in sys.modules))
"""
    )
    assert loaded == ""


def test_the_command_and_the_rows_of_the_outbox_need_no_sqlalchemy() -> None:
    assert printed("import sys, shardq.cli, shardq.outbox.rows; print('sqlalchemy' in sys.modules)") == "False"


def test_the_errors_are_there_without_being_imported() -> None:
    assert printed("import shardq; print(shardq.errors.ShardqError is shardq.ShardqError)") == "True"


def test_the_version_is_that_of_the_package() -> None:
    assert shardq.__version__ == version("shardq")
    assert printed("import sys, shardq; print('shardq.version' in sys.modules)") == "False"
    command = "import sys; from shardq.cli import main; sys.argv = ['shardq', '--version']; main()"
    assert printed(command) == f"shardq {shardq.__version__}"


@pytest.mark.parametrize("package", [shardq, consumer, engine, worker])
def test_every_name_is_there(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]  # a module's
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        _ = package.Missing  # type: ignore[attr-defined]


def test_names_are_listed_before_they_are_loaded() -> None:
    assert printed("import shardq; print('AsyncEngine' in dir(shardq), 'AsyncEngine' in vars(shardq))") == "True False"

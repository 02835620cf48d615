"""A program loads no asyncio that it has not asked for, and all names are there nevertheless; of threads, too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

import shardq
from shardq import engine, worker
from shardq.core import consumer

ROOT = Path(__file__).parent.parent


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


def test_the_version_is_that_of_the_build() -> None:
    """The package was installed from this checkout, at this revision or an earlier one."""
    number = version("shardq").partition("+")[0]
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    told, _, shown = shardq.__version__.partition("+g")
    assert told == number
    assert revision.startswith(shown)
    assert printed("import sys, shardq; print('shardq.version' in sys.modules)") == "False"
    program = "import sys; from shardq.cli import main; sys.argv = ['shardq', '--version']; main()"
    assert printed(program) == f"shardq {shardq.__version__}"


@pytest.mark.parametrize("package", [shardq, consumer, engine, worker])
def test_every_name_is_there(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]  # a module's
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        _ = package.Missing  # type: ignore[attr-defined]


def test_the_public_surface_stays_small() -> None:
    """What a user has to know: each name more has to be worth one that goes."""
    assert len(shardq.__all__) <= 46
    values = [getattr(shardq, name) for name in shardq.__all__]
    assert len([value for value in values if isinstance(value, type) and issubclass(value, shardq.ShardqError)]) == 8
    for kind in (shardq.Engine, shardq.AsyncEngine):
        public = {name for name in dir(kind) if not name.startswith("_")} - {"name", "topology"}
        assert len(public) <= 40, sorted(public)
        assert {name for name in vars(kind("redis://127.0.0.1:1")) if not name.startswith("_")} == set()


def test_names_are_listed_before_they_are_loaded() -> None:
    assert printed("import shardq; print('AsyncEngine' in dir(shardq), 'AsyncEngine' in vars(shardq))") == "True False"


@pytest.mark.parametrize("package", [shardq, consumer, engine, worker])
def test_a_package_lists_none_of_its_tools(package: object) -> None:
    assert {"lazily", "TYPE_CHECKING"} & set(dir(package)) == set()


def test_each_kind_of_thread_has_a_name_of_its_own() -> None:
    """A stack of all threads, and top -H, tell them apart by it."""
    sources = (path for path in Path(shardq.__file__).parent.rglob("*.py") if not path.name.endswith("_sync.py"))
    names = Counter(
        name
        for path in sources
        for name in re.findall(r'(?:name(?:_prefix)?=|Loop\(\s*)f?"(shardq-[a-z-]+)', path.read_text())
    )
    assert len(names) > 20
    assert [name for name, count in names.items() if count > 1] == []

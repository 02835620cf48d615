"""mypy in a project that has shardq installed: all that is public has its types, and wrong calls are errors."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

import shardq
from shardq.testing import AsyncClock, Clock

SHOP = Path(__file__).parent / "shop"
PACKAGES = (shardq.http, shardq.metrics, shardq.otel, shardq.outbox, shardq.testing)
CLASSES = [each for name in shardq.__all__ if inspect.isclass(each := getattr(shardq, name))]


@pytest.mark.slow
def test_mypy_strict(tmp_path: Path) -> None:
    """Outside of this repository, by mypy's own settings. A wrong call that it accepts is an unused ignore."""
    shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    cache = Path(__file__).parents[2] / ".mypy_cache" / "of-users"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", cache, "shop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert resources.files("shardq").joinpath("py.typed").is_file()


def text() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in SHOP.glob("*.py") if path.name != "wrong.py")


def test_every_public_name_is_used() -> None:
    used = text()
    assert [name for name in shardq.__all__ if not re.search(rf"shardq\.{name}\b", used)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_of_a_package_is_used(package: ModuleType) -> None:
    used = text()
    names: list[str] = package.__all__
    assert [name for name in names if not re.search(rf"(\.|import .*\b){name}\b", used)] == []


def methods(kind: type) -> Iterator[str]:
    """Its public methods and properties, but those of builtin types."""
    for name in dir(kind):
        builtin = any(name in vars(base) for base in kind.__mro__ if base.__module__ == "builtins")
        member = inspect.getattr_static(kind, name)
        if not name.startswith("_") and not builtin and isinstance(member, property | classmethod | type(methods)):
            yield name


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_method_is_called(kind: type) -> None:
    used = (SHOP / "loops.py").read_text(encoding="utf-8") if kind.__name__.startswith("Async") else text()
    unused = [name for name in methods(kind) if not re.search(rf"(\.|def |^    ){name}\b", used, re.MULTILINE)]
    # `of` makes receipts of what servers answer.
    assert unused == ([] if kind is not shardq.Receipt else unused)


def test_the_methods_of_clocks_are_called() -> None:
    used = text()
    for kind in (Clock, AsyncClock):
        for name in methods(kind):
            assert f".{name}(" in used or name.startswith("close"), name
